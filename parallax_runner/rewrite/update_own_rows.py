"""Pass: gradients of variables that are spread over the ranks go to the owners of their rows, and each updates its own.

Every rank runs the same update on its own rows; what the update does over all rows (a norm) is brought together.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.asked_before import asked_before
from parallax_runner.rewrite.densify import Rows, aggregate_spread
from parallax_runner.rewrite.distributed_graph import Aggregate, Rewrite
from parallax_runner.rewrite.exchange import ask_owners
from parallax_runner.rewrite.flights import flights_to_owners
from parallax_runner.rewrite.hot_rows import split_hot
from parallax_runner.rewrite.merge import merge
from parallax_runner.rewrite.own_rows import table_of
from parallax_runner.rewrite.routes import travelling_by
from parallax_runner.rewrite.sharded_update import ShardedUpdate
from parallax_runner.rewrite.sharded_value import Kind, ShardedValue


def update_own_rows(rewrite: Rewrite) -> None:
    """Lets each rank apply the mean (or sum) over ranks of the gradients to the rows that are its own."""
    gradients = travelling_by(rewrite, Route.ALLTOALL)
    if not gradients:
        return
    values: dict[str, ShardedValue] = {}
    for number, together in enumerate(flights_to_owners(rewrite, gradients)):
        with tf.name_scope(f"push_{number}/"):
            values |= _send(rewrite, together, name=f"push_{number}")
    update = ShardedUpdate(rewrite=rewrite, values=values)
    update.visit_region()
    if rewrite.train_op in update.copies:
        rewrite.train_op = tf.group(*update.copies[rewrite.train_op])


def _send(rewrite: Rewrite, gradients: list[Aggregate], *, name: str) -> dict[str, ShardedValue]:
    """The aggregates of this rank's own rows, by tensor name."""
    split = [_split(rewrite, gradient) for gradient in gradients]
    exchange = asked_before(rewrite, gradients, name=name)
    if exchange is None:
        tables = [table_of(rewrite, gradient.variables[0]) for gradient in gradients]
        exchange = ask_owners(rewrite, tables, [cold.ids for cold, _ in split], name=name)
    arrived = exchange.to_owners([cold.values for cold, _ in split])
    hot = iter(aggregate_spread(rewrite, [part for _, parts in split for part in parts], name=f"{name}/hot"))
    found = {}
    for gradient, (_, parts), rows, own_ids in zip(gradients, split, arrived, exchange.arrived, strict=True):
        assert gradient.indices is not None
        total, merged_ids = merge(rows, own_ids)
        mean = total / tf.cast(rewrite.plan.replicas, total.dtype) if rewrite.plan.average_sparse else total
        own = Rows(gradient.variables[0], mean, tf.cast(merged_ids, gradient.indices.dtype), rows=0)
        pieces = [own, *(next(hot) for _ in parts)]
        shards = tuple(rewrite.shards_of(gradient.variables[0]))
        values, ids = tuple(piece.values for piece in pieces), tuple(piece.ids for piece in pieces)
        found[gradient.values.name] = ShardedValue(values, shards, kind=Kind("rows", gradient.name))
        found[gradient.indices.name] = ShardedValue(ids, shards, kind=Kind("ids", gradient.name))
    return found


def _split(rewrite: Rewrite, gradient: Aggregate) -> tuple[Rows, list[Rows]]:
    """What goes to the owners, and what goes by allreduce, by its places among the hot rows."""
    assert gradient.indices is not None
    variable = gradient.variables[0]
    shards = rewrite.shards_of(variable)
    if len(shards) == 1:
        return Rows(variable, gradient.values, gradient.indices, rows=0), []
    cold_at, hot_at, places = split_hot(gradient.indices, shards)
    cold = Rows(variable, tf.gather(gradient.values, cold_at), tf.gather(gradient.indices, cold_at), rows=0)
    hot_ids = tf.cast(places, gradient.indices.dtype)
    hot = Rows(variable, tf.gather(gradient.values, hot_at), hot_ids, rows=shards[1].rows)
    return cold, [hot]
