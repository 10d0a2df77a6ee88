"""Fetches rows from their owners, for variables that are spread over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.every_route.merge import ascending
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange, Table, ask_owners
from parallax_runner.rewrite.state import Rewrite

if TYPE_CHECKING:
    from parallax_runner.rewrite.routes.alltoall.over_ranks import OverRanks


@dataclass(frozen=True)
class Asked:
    """A request for rows of variables, which is sent to the owners of the rows. The `ids` can have any shape.

    For each id of table t, `places[t]` (int32, flat) contains the position of the id's row among the rows that arrive.
    """

    placements: tuple[OverRanks, ...]
    ids: tuple[tf.Tensor, ...]
    exchange: Exchange
    places: tuple[tf.Tensor, ...]

    def of(self, members: Sequence[int], *, name: str) -> Asked:
        """Returns the request restricted to the tables `members`."""
        chosen = (tuple(each[member] for member in members) for each in (self.placements, self.ids, self.places))
        placements, ids, places = chosen
        return Asked(placements, ids, self.exchange.of(members, name=name), places)

    def own_rows(self, table: int, places: tf.Tensor) -> tf.Tensor:
        """Reads rows of this rank's own part of a table."""
        return _gather(self.placements[table].own, places)

    def results(self, came: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the looked-up rows [*shape of ids, ...] by table, given the distinct rows that arrived."""
        found = []
        for number, (ids, places) in enumerate(zip(self.ids, self.places, strict=True)):
            result = tf.gather(came[number], tf.reshape(places, tf.shape(ids)))
            result.set_shape(ids.shape.concatenate(self.exchange.tables[number].row_shape))
            found.append(result)
        return found


def table_of(placement: OverRanks) -> Table:
    """Returns the description of the variable that an exchange needs."""
    shape = tf.TensorShape(placement.own.handle.op.get_attr("shape")).as_list()
    return Table(placement.variable, placement.rows, row_shape=tuple(shape[1:]), dtype=placement.own.dtype)


def ask(
    rewrite: Rewrite,
    placements: Sequence[OverRanks],
    ids: Sequence[tf.Tensor],
    *,
    name: str,
    is_exact: bool = False,
) -> Asked:
    """Requests rows from their owners, by ids of any shape. Each distinct id is sent once. This is a collective: all
    ranks must run it."""
    distinct, positions = zip(*(ascending(tf.reshape(each, [-1])) for each in ids), strict=True)
    exchange = ask_owners(rewrite, [table_of(each) for each in placements], distinct, name=name, is_exact=is_exact)
    places = tuple(
        tf.gather(tf.math.invert_permutation(order), position)
        for order, position in zip(exchange.asked, positions, strict=True)
    )
    return Asked(tuple(placements), tuple(ids), exchange, places)


def arrivals(asked: Asked, exchange: Exchange, buckets: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Returns the rows that the owners send through `exchange`, by table.

    `exchange` is `asked.exchange` or a part of that exchange. `buckets` determines the order in which the variables'
    rows are sent, and which variables' rows are sent together. The buckets are sent one after the other.
    """
    rows = [asked.own_rows(table, places) for table, places in enumerate(exchange.arrived)]
    came: dict[int, tf.Tensor] = {}
    departed: set[tf.Operation] = set()
    for number, members in enumerate(buckets):
        part = exchange.of(members, name=f"{exchange.name}/flight_{number}")
        with tf.control_dependencies(sorted(departed, key=lambda op: op.name)):
            leaving = [tf.identity(rows[member]) for member in members]
        sent_before = len(exchange.rewrite.sent)
        came |= zip(members, part.from_owners(leaving), strict=True)
        departed = {one.tensor.op for one in exchange.rewrite.sent[sent_before:]}
    return [came[table] for table in range(len(rows))]


def _gather(shard: Shard, places: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=shard.handle, indices=places, dtype=shard.dtype)
