"""Which gradients may leave in one exchange, since none of them waits for what another one updates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from graphlib import TopologicalSorter

from parallax_runner.graph import edit
from parallax_runner.rewrite.state import RankGradient, Rewrite


def apart(rewrite: Rewrite, gradients: Sequence[RankGradient]) -> list[list[RankGradient]]:
    """`gradients` in sets, none of them empty, in the order in which they are computed.

    An exchange waits for all that is in it: a train op of its own must not wait for another's gradients
    (`SingleDeviceGraph.apart`), nor a gradient that is computed after an update for those that are computed from it.
    """
    stages = _stages(rewrite)
    sets: dict[tuple[int, int], list[RankGradient]] = defaultdict(list)
    for gradient in gradients:
        sets[stages[gradient.name], rewrite.single.part_of(gradient.variables[0])].append(gradient)
    return [sets[key] for key in sorted(sets)]


def _stages(rewrite: Rewrite) -> dict[str, int]:
    """By gradient, how many exchanges must be over, one after the other, before it is computed."""
    waits_for = {one.name: _awaited_by(rewrite, [one]) for one in rewrite.gradients} if _are_chained(rewrite) else {}
    stages = {one.name: 0 for one in rewrite.gradients}
    for name in TopologicalSorter(waits_for).static_order():
        stages[name] = 1 + max((stages[other] for other in waits_for[name]), default=-1)
    return stages


def _are_chained(rewrite: Rewrite) -> bool:
    """Whether any gradient waits for another's update: told once for all, since few models have such a one."""
    return bool(_awaited_by(rewrite, rewrite.gradients))


def _awaited_by(rewrite: Rewrite, gradients: Sequence[RankGradient]) -> list[str]:
    """The gradients that go into ops of the update region for which one of `gradients` waits."""
    before = edit.ancestors(tensor.op for one in gradients for tensor in one.tensors)
    updating = edit.ancestors(rewrite.region & before)
    return [one.name for one in rewrite.gradients if one.values.op in updating]
