"""Rows of variables that are spread over the ranks, from their owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.every_route.merge import ascending
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange, Table, ask_owners
from parallax_runner.rewrite.state import Rewrite

if TYPE_CHECKING:
    from parallax_runner.rewrite.routes.alltoall.over_ranks import OverRanks


def table_of(placement: OverRanks) -> Table:
    """The variable as an exchange must know it."""
    shape = tf.TensorShape(placement.own.handle.op.get_attr("shape")).as_list()
    return Table(placement.variable, placement.rows, row_shape=tuple(shape[1:]), dtype=placement.own.dtype)


def look_up(
    rewrite: Rewrite,
    placements: Sequence[OverRanks],
    ids: Sequence[tf.Tensor],
    *,
    name: str,
    is_exact: bool = False,
    buckets: Sequence[Sequence[int]] = (),
) -> tuple[list[tf.Tensor], Exchange]:
    """Rows of variables by any ids of any shape, each distinct id asked once, and the exchange by which they came. A
    collective: all ranks must run it.

    `buckets` says in which order the variables' rows travel, and which of them together; all of them, if not given.
    """
    tables = [table_of(placement) for placement in placements]
    distinct, positions = zip(*(ascending(tf.reshape(each, [-1])) for each in ids), strict=True)
    exchange = ask_owners(rewrite, tables, distinct, name=name, is_exact=is_exact)
    found = [_gather(each.own, arrived) for each, arrived in zip(placements, exchange.arrived, strict=True)]
    came = _in_buckets(exchange, found, buckets or [range(len(tables))])
    results = []
    for number in range(len(tables)):
        places = tf.math.invert_permutation(exchange.asked[number])
        result = tf.gather(came[number], tf.reshape(tf.gather(places, positions[number]), tf.shape(ids[number])))
        result.set_shape(ids[number].shape.concatenate(tables[number].row_shape))
        results.append(result)
    return results, exchange


def _in_buckets(
    exchange: Exchange, rows: Sequence[tf.Tensor], buckets: Sequence[Sequence[int]]
) -> dict[int, tf.Tensor]:
    """Rows as they came from their owners, by their variable's number; a bucket departs when the one before has."""
    came: dict[int, tf.Tensor] = {}
    departed: set[tf.Operation] = set()
    for number, members in enumerate(buckets):
        part = exchange.of(members, name=f"{exchange.name}/flight_{number}")
        with tf.control_dependencies(sorted(departed, key=lambda op: op.name)):
            leaving = [tf.identity(rows[member]) for member in members]
        sent_before = len(exchange.rewrite.sent)
        came |= zip(members, part.from_owners(leaving), strict=True)
        departed = {one.tensor.op for one in exchange.rewrite.sent[sent_before:]}
    return came


def _gather(shard: Shard, places: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=shard.handle, indices=places, dtype=shard.dtype)
