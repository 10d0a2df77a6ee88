"""Fetches rows from their owners, for variables that are spread over the ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.chosen import backend
from parallax_runner.graph import edit
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.alltoall.by_table import ByTable, cut
from parallax_runner.routes.alltoall.request import ask_owners, keys_of, of_one_dtype
from parallax_runner.routes.alltoall.row_exchange import Exchange, Message, Table

if TYPE_CHECKING:
    from parallax_runner.routes.alltoall.over_ranks import OverRanks


@dataclass(frozen=True)
class Asked:
    """A request for rows of variables, which is sent to the owners of the rows.

    The `ids` can have any shape. `distinct` contains the distinct ids of each table in ascending order, and `positions`
    (int32) the position of each id among the distinct ids of its table.
    """

    placements: tuple[OverRanks, ...]
    ids: tuple[tf.Tensor, ...]
    distinct: ByTable
    positions: ByTable
    exchange: Exchange

    def of(self, members: Sequence[int], *, name: str) -> Asked:
        """Returns the request restricted to the tables `members`."""
        placements, ids = (tuple(each[member] for member in members) for each in (self.placements, self.ids))
        distinct, positions = self.distinct.of(members), self.positions.of(members)
        return Asked(placements, ids, distinct, positions, self.exchange.of(members, name=name))

    def own_rows(self, table: int, places: tf.Tensor) -> tf.Tensor:
        """Reads rows of this rank's own part of a table."""
        return _gather(self.placements[table].own, places)

    def result(self, table: int, rows: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Returns the looked-up rows [*shape of ids, ...] of a table. The row of the i-th id is `rows[places[i]]`."""
        ids = self.ids[table]
        found = tf.gather(rows, tf.reshape(places, tf.shape(ids)))
        found.set_shape(ids.shape.concatenate(self.exchange.tables[table].row_shape))
        return found


@dataclass(frozen=True)
class Came:
    """The distinct rows of a table, which arrived in a message. The row of the i-th id is `rows[places[i]]`."""

    rows: tf.Tensor
    places: tf.Tensor

    def in_order(self) -> tf.Tensor:
        """Returns the rows in ascending order of ids."""
        return tf.gather(self.rows, self.places)


def table_of(placement: OverRanks) -> Table:
    """Describes a variable for an exchange."""
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
    tables = [table_of(each) for each in placements]
    keys = keys_of(tables, ids, rewrite.plan.workers)
    exchange = ask_owners(rewrite, tables, keys, name=name, is_exact=is_exact)
    distinct = cut(keys.ids, exchange.sent.ranks.lengths)
    return Asked(tuple(placements), tuple(ids), distinct, keys.positions, exchange)


def looked_up(asked: Asked, buckets: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Returns the looked-up rows [*shape of ids, ...], by table. `buckets` has the same meaning as in `arrivals`."""
    found: dict[int, tf.Tensor] = {}
    for message in _messages(asked, asked.exchange, buckets):
        found |= zip(message.members, _unpacked(asked, message), strict=True)
    return [found[table] for table in range(len(found))]


def _unpacked(asked: Asked, message: Message) -> list[tf.Tensor]:
    """Returns the looked-up rows of the tables in a message."""
    kernels, places = backend().row_kernels(), message.places
    if kernels is None:
        positions = [asked.positions.parts[table] for table in message.members]
        return [
            asked.result(table, message.rows, tf.gather(of_table, each))
            for table, of_table, each in zip(message.members, places.parts, positions, strict=True)
        ]
    ids = of_one_dtype([asked.ids[table] for table in message.members])
    found = kernels.unpack_rows(
        message.rows, places.whole, places.lengths, asked.positions.of(message.members).whole, ids
    )
    for table, rows in zip(message.members, found, strict=True):
        rows.set_shape(asked.ids[table].shape.concatenate(asked.exchange.tables[table].row_shape))
    return found


def arrivals(asked: Asked, exchange: Exchange, buckets: Sequence[Sequence[int]]) -> list[Came]:
    """Returns the rows that the owners send through `exchange`, by table.

    `exchange` is `asked.exchange` or a part of that exchange. `buckets` determines the order in which the variables'
    rows are sent, and which variables' rows are sent together. A bucket is sent when the bucket before it has arrived.
    Otherwise TensorFlow sends the buckets in any order, because the exchange ends when its rows have arrived.
    """
    came = {
        table: Came(message.rows, places)
        for message in _messages(asked, exchange, buckets)
        for table, places in zip(message.members, message.places.parts, strict=True)
    }
    return [came[table] for table in range(len(came))]


def _messages(asked: Asked, exchange: Exchange, buckets: Sequence[Sequence[int]]) -> Iterator[Message]:
    """Yields the messages of `arrivals`. Their `members` are tables of `asked`."""
    rows = [asked.own_rows(table, places) for table, places in enumerate(exchange.own.parts)]
    arrived: list[tf.Operation] = []
    for number, members in enumerate(buckets):
        part = exchange.of(members, name=f"{exchange.name}/flight_{number}")
        sent_before = len(exchange.rewrite.sent)
        messages = part.from_owners([rows[member] for member in members])
        for departing in {one.tensor.op for one in exchange.rewrite.sent[sent_before:]}:
            edit.set_control_inputs(departing, [*departing.control_inputs, *arrived])
        arrived = [message.rows.op for message in messages]
        for message in messages:
            yield dataclasses.replace(message, members=tuple(members[member] for member in message.members))


def _gather(shard: Shard, places: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=shard.handle, indices=places, dtype=shard.dtype)
