"""Which gradients may leave in one exchange, since none of them waits for what another one updates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from graphlib import TopologicalSorter

from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import Aggregate, Rewrite


def apart(rewrite: Rewrite, gradients: Sequence[Aggregate]) -> list[list[Aggregate]]:
    """`gradients` in sets, none of them empty, in the order in which they are computed.

    An exchange waits for all that is in it: a train op of its own must not wait for another's gradients
    (`SingleDeviceGraph.apart`), nor a gradient that is computed after an update for those that are computed from it.
    """
    stages = _stages(rewrite)
    sets: dict[tuple[int, int], list[Aggregate]] = defaultdict(list)
    for gradient in gradients:
        sets[stages[gradient.name], rewrite.single.part_of(gradient.variables[0])].append(gradient)
    return [sets[key] for key in sorted(sets)]


def _stages(rewrite: Rewrite) -> dict[str, int]:
    """By gradient, how many exchanges must be over, one after the other, before it is computed."""
    before = {one.name: rewrite.region & _ancestors([one]) for one in _after_updates(rewrite)}
    waits_for = {
        name: [one.name for one in rewrite.gradients if one.values.op in edit.ancestors(ops)]
        for name, ops in before.items()
    }
    stages = {one.name: 0 for one in rewrite.gradients}
    for name in TopologicalSorter(waits_for).static_order():
        stages[name] = 1 + max((stages[other] for other in waits_for.get(name, ())), default=-1)
    return stages


def _after_updates(rewrite: Rewrite) -> Sequence[Aggregate]:
    """The gradients that wait for an op of the update region; looked for one by one only where there is one."""
    if not rewrite.region & _ancestors(rewrite.gradients):
        return []
    return [one for one in rewrite.gradients if rewrite.region & _ancestors([one])]


def _ancestors(gradients: Sequence[Aggregate]) -> set[edit.Op]:
    tensors = [tensor for one in gradients for tensor in (one.values, one.indices) if tensor is not None]
    return edit.ancestors(tensor.op for tensor in tensors)
