"""Ids whose owners know already which of their rows they mean: those of a lookup are those of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.graph import edit
from parallax_runner.graph.handed_on import sources
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange
from parallax_runner.rewrite.state import RankGradient, Rewrite

OF_ANY_LENGTH = "PlaceholderWithDefault"  # around a raw gradient's ids (graph/gradients_hook.py)


@dataclass(frozen=True)
class KnownIds:
    """A variable whose rows were looked up in an exchange, in which it is table `number`, by ids of these sources."""

    variable: str
    sources: frozenset[str]
    exchange: Exchange
    number: int


def exchange_of_known_ids(rewrite: Rewrite, gradients: Sequence[RankGradient], *, name: str) -> Exchange | None:
    """The exchange that brought the rows of which these are the gradients, merged; None where a gradient has other ids,
    or the rows came in several exchanges.

    Gradients of several replicas are merged, and so have more ids than the lookup of one of them. What only validation
    looks up is not asked for in a step.
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
