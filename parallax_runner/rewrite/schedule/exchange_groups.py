"""Groups gradients that can share one exchange because no gradient in a group waits for an update that uses another
gradient of the group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from graphlib import TopologicalSorter

from parallax_runner.graph import edit
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite


def apart(rewrite: Rewrite, gradients: Sequence[RankGradient]) -> list[list[RankGradient]]:
    """Splits `gradients` into non-empty sets, in the order in which they are computed.

    An exchange waits for all its gradients. Therefore, one train op must not wait for the gradients of another train op
    (`SingleDeviceGraph.apart`), and a gradient that an update needs must not wait for gradients computed after that
    update.
    """
    stages = _stages(rewrite)
    sets: dict[tuple[int, int], list[RankGradient]] = defaultdict(list)
    for gradient in gradients:
        sets[stages[gradient.name], rewrite.single.part_of(gradient.variables[0])].append(gradient)
    return [sets[key] for key in sorted(sets)]


def _stages(rewrite: Rewrite) -> dict[str, int]:
    """Returns, for each gradient, the number of exchanges that must finish, one after another, before the gradient can
    be computed."""
    waits_for = {one.name: _awaited_by(rewrite, [one]) for one in rewrite.gradients} if _are_chained(rewrite) else {}
    stages = {one.name: 0 for one in rewrite.gradients}
    for name in TopologicalSorter(waits_for).static_order():
        stages[name] = 1 + max((stages[other] for other in waits_for[name]), default=-1)
    return stages


def _are_chained(rewrite: Rewrite) -> bool:
    """Returns whether any gradient waits for an update that uses another gradient. Few models have such gradients, so
    this single search usually replaces a separate search for each gradient."""
    return bool(_awaited_by(rewrite, rewrite.gradients))


def _awaited_by(rewrite: Rewrite, gradients: Sequence[RankGradient]) -> list[str]:
    """Finds the update ops that must run before any of `gradients` is computed. Returns the names of the gradients that
    these ops read."""
    before = edit.ancestors(tensor.op for one in gradients for tensor in one.tensors)
    updating = edit.ancestors(rewrite.region & before)
    return [one.name for one in rewrite.gradients if one.values.op in updating]
