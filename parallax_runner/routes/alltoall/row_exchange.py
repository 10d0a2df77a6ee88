"""Moves rows of several variables between the ranks that need them and the ranks that own them, in one exchange.

Row i belongs to rank i mod ranks. The ids of all variables are sent in one message for each pair of ranks. Each
variable's ids are offset by the number of rows of the variables before it, so an id also identifies its variable. The
rows of all variables are sent in one message, too.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.chosen import backend
from parallax_runner.collectives.row_kernels import RowKernels
from parallax_runner.rewrite.exchange.compression import compress, decompress
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.alltoall.by_table import ByTable, count, cut, is_all
from parallax_runner.routes.alltoall.mixed_message import MixedMessage


@dataclass(frozen=True)
class Table:
    """Describes, for an exchange, a variable whose rows are spread over the ranks: a variable of the plan, or one of
    its slots."""

    variable: str
    rows: int
    row_shape: tuple[int, ...]
    dtype: tf.DType


@dataclass(frozen=True)
class Side:
    """The rows on one side of an exchange: the rows that this rank requests, or the rows that ranks request from it.

    `ranks` (int32) contains the rank on the other side of each row. `counts` (int32 [ranks, tables]) counts the rows by
    rank and table. In a message, the rows are ordered by rank, then by table, and then as in this object.
    """

    ranks: ByTable
    counts: tf.Tensor

    def of(self, members: Sequence[int]) -> Side:
        """Returns the rows of the tables `members`."""
        if is_all(members, len(self.ranks.parts)):
            return self
        return Side(self.ranks.of(members), tf.gather(self.counts, members, axis=1))

    def marked(self, marks: tf.Tensor) -> Side:
        """Returns the marked rows. `marks` (bool) is ordered by table."""
        return side(tf.boolean_mask(self.ranks.whole, marks), self.count(marks))

    def count(self, marks: tf.Tensor) -> tf.Tensor:
        """Counts the marked rows by rank and table (int32 [ranks, tables])."""
        return count_by_rank(self.ranks.whole, self.ranks.numbers, self.counts.shape, marks)

    def places(self) -> ByTable:
        """Returns the position of each row in a message (int32)."""
        ranks, size = self.ranks.whole, self.counts.shape[0]
        kernels = backend().row_kernels()
        if kernels is not None:
            return cut(kernels.places_by_rank(ranks, size), self.ranks.lengths)
        order = tf.dynamic_partition(tf.range(tf.size(ranks)), ranks, size)
        return cut(tf.math.invert_permutation(tf.concat(order, axis=0)), self.ranks.lengths)


def side(ranks: tf.Tensor, counts: tf.Tensor) -> Side:
    """Returns a side. `ranks` contains the rank of each row, with the rows ordered by table. `counts` counts the rows
    by rank and table."""
    return Side(cut(ranks, tf.reduce_sum(counts, axis=0)), counts)


def count_by_rank(
    ranks: tf.Tensor, tables: tf.Tensor, shape: Sequence[int], marks: tf.Tensor | None = None
) -> tf.Tensor:
    """Counts rows by rank and table (int32 `shape`), given the rank and the table of each row. Rows that `marks` (bool)
    does not mark are left out."""
    most_ranks, most_tables = shape
    return tf.reshape(count(ranks * most_tables + tables, most_ranks * most_tables, marks), shape)


@dataclass(frozen=True)
class Message:
    """Rows of the tables `members` that arrived together. Row i of a table is `rows[places[i]]`."""

    members: tuple[int, ...]
    rows: tf.Tensor
    places: ByTable


@dataclass(frozen=True)
class Exchange:
    """An exchange of the rows of several tables.

    `sent` are the rows that this rank requests, in ascending order of ids. `arrived` are the rows that ranks request
    from this rank, in rank order, and `own` contains their positions within this rank's own rows. With `is_exact`, rows
    are never compressed, even if the plan uses compression.
    """

    rewrite: Rewrite
    name: str
    tables: tuple[Table, ...]
    sent: Side
    arrived: Side
    own: ByTable
    is_exact: bool

    def of(self, members: Sequence[int], *, name: str) -> Exchange:
        """Returns the exchange restricted to the tables `members`. Its rows are exchanged under the name `name`."""
        return dataclasses.replace(
            self,
            name=name,
            tables=tuple(self.tables[member] for member in members),
            sent=self.sent.of(members),
            arrived=self.arrived.of(members),
            own=self.own.of(members),
        )

    def part(self, sent: tf.Tensor, arrived: tf.Tensor, *, name: str) -> Exchange:
        """Returns the part of the exchange for marked rows: the marked rows that this rank requests, and the marked
        rows that are requested from it. The marks (bool) are ordered by table."""
        marked = self.arrived.marked(arrived)
        own = cut(tf.boolean_mask(self.own.whole, arrived), marked.ranks.lengths)
        return dataclasses.replace(self, name=name, sent=self.sent.marked(sent), arrived=marked, own=own)

    def to_owners(self, rows: Sequence[tf.Tensor]) -> list[Message]:
        """Sends `rows[t]` (in the order of `sent`) to the owners. Returns the rows that arrive, in the order of
        `arrived`."""
        return self._travel(_pack(rows, self.sent), self.sent, self.arrived, f"{self.name}/to_owners")

    def sums_to_owners(
        self, kernels: RowKernels, addends: Sequence[tf.Tensor], positions: Sequence[tf.Tensor]
    ) -> list[Message]:
        """Sums the `addends[t]` with the same `positions[t]` (int32, positions in `sent`), and sends the sums as
        `to_owners` does."""

        def packed(members: Sequence[int]) -> tf.Tensor:
            source, values = self.sent.of(members), [addends[member] for member in members]
            positions_of = [positions[member] for member in members]
            message = kernels.pack_sums(values, positions_of, source.ranks.lengths, source.places().whole)
            return _with_rows_like(message, values[0])

        return self._travel(packed, self.sent, self.arrived, f"{self.name}/to_owners")

    def from_owners(self, rows: Sequence[tf.Tensor]) -> list[Message]:
        """Sends `rows[t]` (in the order of `arrived`) to the ranks that requested them. Returns the rows that arrive,
        in the order of `sent`."""
        return self._travel(_pack(rows, self.arrived), self.arrived, self.sent, f"{self.name}/from_owners")

    def marks_from_owners(self, marks: tf.Tensor, *, name: str) -> tf.Tensor:
        """Sends a mark for each row (bool, in the order of `arrived`) to the rank that requested the row. Returns the
        marks that arrive, in the order of `sent`."""
        tables = tuple(dataclasses.replace(table, row_shape=(), dtype=tf.uint8) for table in self.tables)
        told = dataclasses.replace(self, name=name, tables=tables, is_exact=True)
        (message,) = told.from_owners(cut(tf.cast(marks, tf.uint8), self.arrived.ranks.lengths).parts)
        return tf.cast(tf.gather(message.rows, message.places.whole), tf.bool)

    def _travel(
        self, packed: Callable[[Sequence[int]], tf.Tensor], source: Side, target: Side, name: str
    ) -> list[Message]:
        """Sends the rows of all tables in one exchange. `packed` returns the rows of tables whose rows are alike, in
        the order of a message."""
        groups = alike(self.tables)
        rows = [packed(members) for members in groups]
        sent = rows if self.is_exact else [compress(self.rewrite, each) for each in rows]
        came = self._swapped(sent, groups, source, target, name=f"{name}/rows")
        if not self.is_exact:
            came = [decompress(self.rewrite, each, one.dtype) for each, one in zip(came, rows, strict=True)]
        return [
            Message(tuple(members), arrived, target.of(members).places())
            for members, arrived in zip(groups, came, strict=True)
        ]

    def _swapped(
        self, rows: Sequence[tf.Tensor], groups: Sequence[Sequence[int]], source: Side, target: Side, *, name: str
    ) -> list[tf.Tensor]:
        """Sends the rows of each of the `groups`. Returns the rows that arrive."""
        members = [member for group in groups for member in group]
        variables = [self.tables[member].variable for member in members]
        counts = tf.gather(source.counts, members, axis=1)
        if len(groups) == 1:
            return [swap(self.rewrite, rows[0], counts, variables, name=name)[0]]
        mixed = MixedMessage(rows, self.rewrite.plan.workers)
        width_of_table = [width for width, group in zip(mixed.widths, groups, strict=True) for _ in group]
        message = mixed.joined(rows, _counts_by_group(source, groups))
        came, _ = swap(self.rewrite, message, counts * tf.constant(width_of_table), variables, name=name)
        return mixed.split(came, _counts_by_group(target, groups))


def alike(tables: Sequence[Table]) -> list[list[int]]:
    """Groups tables whose rows have the same dtype and shape, so that one tensor can contain the rows of all of
    them."""
    groups: dict[tuple[tf.DType, tuple[int, ...]], list[int]] = defaultdict(list)
    for number, table in enumerate(tables):
        groups[table.dtype, table.row_shape].append(number)
    return list(groups.values())


def swap(
    rewrite: Rewrite, tensor: tf.Tensor, rows: tf.Tensor, variables: Sequence[str], *, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs `collectives.all_to_all` and counts the bytes that are sent to other ranks.

    `tensor` has `rows[r, v]` (int32) rows for rank r and variable v, ordered by r and then by v.
    """
    from parallax_runner.collectives import ops as collectives

    tensor = tf.identity(tensor)  # counted only if this exchange is in the step
    came, came_counts = collectives.all_to_all(tensor, tf.reduce_sum(rows, axis=1), name=name)
    came.set_shape([None, *tensor.shape[1:]])
    came_counts.set_shape([rewrite.plan.workers])
    of_others = (tf.reduce_sum(rows, axis=0) - rows[rewrite.rank]) * tensor.shape[1:].num_elements()
    values = tf.unstack(of_others, num=len(variables))
    rewrite.sent += [Sent(tensor, 1, variable, each) for variable, each in zip(variables, values, strict=True)]
    return came, came_counts


def _pack(rows: Sequence[tf.Tensor], source: Side) -> Callable[[Sequence[int]], tf.Tensor]:
    """Returns a function that returns the rows of some tables in the order of a message."""

    def packed(members: Sequence[int]) -> tf.Tensor:
        of_members = [rows[member] for member in members]
        message = tf.dynamic_stitch(list(source.of(members).places().parts), of_members)
        return _with_rows_like(message, of_members[0])

    return packed


def _with_rows_like(message: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    message.set_shape([None, *rows.shape[1:]])
    return message


def _counts_by_group(side: Side, groups: Sequence[Sequence[int]]) -> tf.Tensor:
    """Counts the rows by rank and group of tables (int32 [ranks, groups])."""
    return tf.stack([tf.reduce_sum(tf.gather(side.counts, members, axis=1), axis=1) for members in groups], axis=1)
