"""Reuses the ids of a lookup for the lookup's gradient: the owners have already received these ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.graph import edit
from parallax_runner.graph.handed_on import sources
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange
from parallax_runner.rewrite.state import RankGradient, Rewrite

OF_ANY_LENGTH = "PlaceholderWithDefault"  # wraps a raw gradient's ids (graph/gradients_hook.py)


@dataclass(frozen=True)
class KnownIds:
    """A variable whose rows were looked up through table `number` of `exchange`. The ids come from the tensors named in
    `sources`."""

    variable: str
    sources: frozenset[str]
    exchange: Exchange
    number: int


def exchange_of_known_ids(rewrite: Rewrite, gradients: Sequence[RankGradient], *, name: str) -> Exchange | None:
    """Returns the exchange that looked up the rows of these merged gradients.

    Returns None if a gradient's ids differ from the ids of the lookup, or if the rows came in several exchanges. The
    result is also None for several replicas per worker, because their merged gradients have more ids than the lookup of
    one replica. A lookup that runs only in validation is ignored.
    """
    if rewrite.plan.replicas_per_worker > 1:
        return None
    loss = rewrite.tensor(rewrite.single.loss).op
    in_step = edit.ancestors([loss, *(gradient.values.op for gradient in gradients)])
    asked = [one for one in rewrite.known_ids if one.exchange.arrived[one.number].op in in_step]
    found = [_lookup_of(rewrite, gradient.variables[0], asked) for gradient in gradients]
    first = found[0]
    if first is None or any(one is None or one.exchange is not first.exchange for one in found):
        return None
    return first.exchange.of([one.number for one in found if one is not None], name=name)


def _lookup_of(rewrite: Rewrite, variable: str, asked: Sequence[KnownIds]) -> KnownIds | None:
    raw = [one.indices for one in rewrite.single.gradients if one.variable == variable and one.indices]
    if len(raw) != 1:
        return None
    ids = rewrite.tensor(raw[0])
    if ids.op.type == OF_ANY_LENGTH:
        ids = ids.op.inputs[0]
    wanted = sources(ids)
    return next((one for one in asked if one.variable == variable and one.sources == wanted), None)
