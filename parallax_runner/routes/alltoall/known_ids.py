"""Reuses the ids of a lookup for the lookup's gradient: the owners have already received these ids, and duplicates have
already been found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.same_values import in_order, sources
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite
from parallax_runner.routes.alltoall.lookup import Asked
from parallax_runner.routes.alltoall.state import AlltoallState

OF_ANY_LENGTH = "PlaceholderWithDefault"  # wraps a raw gradient's ids (graph/gradients_hook.py)


@dataclass(frozen=True)
class KnownIds:
    """A variable whose rows were looked up by `ids`, through table `number` of `asked`."""

    variable: str
    ids: tf.Tensor
    asked: Asked
    number: int


def known_ids_of(rewrite: Rewrite, gradients: Sequence[RankGradient]) -> list[KnownIds] | None:
    """Returns, for each of the merged gradients, the ids by which its rows were looked up.

    Returns None if a gradient's ids differ from the ids of the lookup, or if the rows were fetched in several
    exchanges. The result is also None for several replicas per worker, because their merged gradients have more ids
    than the lookup of one replica. A lookup that runs only in validation is ignored.
    """
    if rewrite.plan.replicas_per_worker > 1:
        return None
    loss = rewrite.tensor(rewrite.single.loss).op
    in_step = edit.ancestors([loss, *(gradient.values.op for gradient in gradients)])
    asked = [one for one in rewrite.of_route(AlltoallState).known_ids if one.asked.exchange.own.whole.op in in_step]
    found = [_lookup_of(rewrite, gradient.variables[0], asked) for gradient in gradients]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or any(one.asked is not known[0].asked for one in known):
        return None
    return known


def reuse_positions(rewrite: Rewrite, gradient: RankGradient, known: KnownIds) -> None:
    """Makes the merge of a gradient use the distinct ids of the lookup, if the gradient has a row for each looked-up id
    in the same order."""
    raw = _raw_ids(rewrite, gradient.variables[0])
    if raw is None or gradient.merged is None or gradient.indices is None or in_order(raw) != in_order(known.ids):
        return
    asked, old = known.asked, gradient.indices
    positions = asked.positions.parts[known.number]
    edit.reconnect(gradient.merged.positions, positions, where=lambda _: True)
    gradient.merged.positions = positions
    gradient.indices = tf.cast(asked.distinct.parts[known.number], old.dtype)
    edit.reconnect(old, gradient.indices, where=lambda _: True)
    rewrite.replaced.add(old.name)


def _lookup_of(rewrite: Rewrite, variable: str, asked: Sequence[KnownIds]) -> KnownIds | None:
    ids = _raw_ids(rewrite, variable)
    if ids is None:
        return None
    wanted = sources(ids)
    return next((one for one in asked if one.variable == variable and sources(one.ids) == wanted), None)


def _raw_ids(rewrite: Rewrite, variable: str) -> tf.Tensor | None:
    """Returns the ids of a variable's only sparse gradient, or None unless there is exactly one."""
    raw = [one.indices for one in rewrite.single.gradients if one.variable == variable and one.indices]
    if len(raw) != 1:
        return None
    ids = rewrite.tensor(raw[0])
    return ids.op.inputs[0] if ids.op.type == OF_ANY_LENGTH else ids
