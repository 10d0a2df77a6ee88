"""Moves rows of several variables between the ranks that need them and the ranks that own them, in one exchange.

Row i belongs to rank i mod ranks. The ids of all variables are sent in one message for each pair of ranks. Each
variable's ids are offset by the number of rows of the variables before it, so an id also identifies its variable. Rows
are sent in one message for each dtype.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.exchange.compression import compress, decompress
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.state import Rewrite

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Table:
    """Describes, for an exchange, a variable whose rows are spread over the ranks: a variable of the plan, or its
    slot."""

    variable: str
    rows: int
    row_shape: tuple[int, ...]
    dtype: tf.DType


@dataclass(frozen=True)
class Exchange:
    """An exchange of distinct ascending ids, and of the rows with these ids.

    `asked[t]` contains positions in table t's ids, ordered by owner. `arrived[t]` contains the ids of table t that this
    rank received, ordered by sender. Each id is given as a position within this rank's own rows. `sent_counts` and
    `arrived_counts` [ranks, tables] count the sent and the received ids by rank and table. With `is_exact`, rows are
    never compressed, even if the plan uses compression.
    """

    rewrite: Rewrite
    name: str
    tables: tuple[Table, ...]
    asked: tuple[tf.Tensor, ...]
    arrived: tuple[tf.Tensor, ...]
    sent_counts: tf.Tensor
    arrived_counts: tf.Tensor
    is_exact: bool

    def of(self, members: Sequence[int], *, name: str) -> Exchange:
        """Returns the exchange restricted to the tables `members`. Its rows are exchanged under the name `name`."""
        if list(members) == list(range(len(self.tables))):
            return dataclasses.replace(self, name=name)
        return Exchange(
            self.rewrite,
            name,
            tables=tuple(self.tables[member] for member in members),
            asked=tuple(self.asked[member] for member in members),
            arrived=tuple(self.arrived[member] for member in members),
            sent_counts=tf.gather(self.sent_counts, members, axis=1),
            arrived_counts=tf.gather(self.arrived_counts, members, axis=1),
            is_exact=self.is_exact,
        )

    def to_owners(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sends `rows[t]` (shape [ids of t, ...], in the order of the ids) to the owners. Returns the rows that arrive
        (shape [arrived ids of t, ...])."""
        by_owner = [tf.gather(each, order) for each, order in zip(rows, self.asked, strict=True)]
        return self._travel(by_owner, self.sent_counts, self.arrived_counts, f"{self.name}/to_owners")

    def from_owners(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sends `rows[t]` (shape [arrived ids of t, ...]) back to the ranks that requested them. Returns the rows that
        arrive (shape [ids of t, ...]), in the order of `asked[t]`.

        The rows are not sorted into the order of the ids: the caller gathers from the rows anyway, so sorting the rows
        would cost an additional copy.
        """
        return self._travel(rows, self.arrived_counts, self.sent_counts, f"{self.name}/from_owners")

    def _travel(self, rows: Sequence[tf.Tensor], sent: tf.Tensor, received: tf.Tensor, name: str) -> list[tf.Tensor]:
        found = list(rows) if self.is_exact else [compress(self.rewrite, each) for each in rows]
        for dtype in dict.fromkeys(each.dtype for each in found):
            members = [number for number, each in enumerate(found) if each.dtype == dtype]
            travelled = self._of_one_dtype([found[m] for m in members], members, sent, received, f"{name}/{dtype.name}")
            for number, result in zip(members, travelled, strict=True):
                found[number] = result
        if self.is_exact:
            return found
        return [decompress(self.rewrite, each, table.dtype) for each, table in zip(found, self.tables, strict=True)]

    def _of_one_dtype(
        self, rows: Sequence[tf.Tensor], members: Sequence[int], sent: tf.Tensor, received: tf.Tensor, name: str
    ) -> list[tf.Tensor]:
        variables = [self.tables[member].variable for member in members]
        if len(members) == 1:
            (only,) = rows
            only.set_shape([None, *self.tables[members[0]].row_shape])
            return [swap(self.rewrite, only, tf.gather(sent, members, axis=1), variables, name=name)[0]]
        widths = tf.constant([tf.TensorShape(self.tables[m].row_shape).num_elements() for m in members], tf.int32)
        sent = tf.gather(sent, members, axis=1) * widths
        received = tf.gather(received, members, axis=1) * widths
        flat = [tf.reshape(each, [-1]) for each in rows]
        message = _interleave(flat, sent, self.rewrite.plan.workers)
        came, _ = swap(self.rewrite, message, sent, variables, name=name)
        return [
            tf.reshape(each, [-1, *self.tables[m].row_shape])
            for each, m in zip(_deinterleave(came, received, self.rewrite.plan.workers), members, strict=True)
        ]


def ask_owners(
    rewrite: Rewrite, tables: Sequence[Table], ids: Sequence[tf.Tensor], *, name: str, is_exact: bool = False
) -> Exchange:
    """Sends distinct ascending ids ([n] for each table) to the ranks that own their rows.

    This is a collective: all ranks must run it.
    """
    ranks = rewrite.plan.workers
    ids = [_in_range(each, table) for each, table in zip(ids, tables, strict=True)]
    starts = _first_rows(tables, ranks)
    wide = tf.int64 if starts[-1] > MAX_INT32 else tf.int32
    owners = [tf.cast(each % ranks, tf.int32) for each in ids]
    shifted = [tf.cast(each // ranks, wide) + start for each, start in zip(ids, starts, strict=False)]
    asked = tuple(tf.concat(tf.dynamic_partition(tf.range(tf.size(owner)), owner, ranks), axis=0) for owner in owners)
    sent_counts = tf.stack([tf.math.bincount(owner, minlength=ranks, maxlength=ranks) for owner in owners], axis=1)
    parts = tf.dynamic_partition(tf.concat(shifted, axis=0), tf.concat(owners, axis=0), ranks)
    variables = [table.variable for table in tables]
    came, counts = swap(rewrite, tf.concat(parts, axis=0), sent_counts, variables, name=f"{name}/ids")
    if len(tables) == 1:
        arrived, arrived_counts = (came,), tf.reshape(counts, [ranks, 1])
    else:
        arrived, arrived_counts = _by_table(came, counts, starts)
    return Exchange(rewrite, name, tuple(tables), asked, arrived, sent_counts, arrived_counts, is_exact)


def _in_range(ids: tf.Tensor, table: Table) -> tf.Tensor:
    """Asserts that all ids belong to rows of the table. The owner of any other id would treat the id as a row of
    another table."""
    least, most = (tf.cast(reduce(ids), tf.int64) for reduce in (tf.reduce_min, tf.reduce_max))
    is_right = tf.equal(tf.size(ids), 0) | ((least >= 0) & (most < table.rows))
    told = [f"variable «{table.variable}» has {table.rows} rows, but its ids range from", least, "to", most]
    with tf.control_dependencies([tf.debugging.Assert(is_right, told)]):
        return tf.identity(ids)


def swap(
    rewrite: Rewrite, tensor: tf.Tensor, rows: tf.Tensor, variables: Sequence[str], *, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs `collectives.all_to_all` and counts the bytes for other ranks as sent.

    `tensor` has `rows[r, v]` (int32) rows for rank r and variable v, ordered by r and then by v.
    """
    from parallax_runner.rewrite.exchange import collectives

    tensor = tf.identity(tensor)  # counted only if this exchange is in the step
    came, came_counts = collectives.all_to_all(tensor, tf.reduce_sum(rows, axis=1), name=name)
    came.set_shape([None, *tensor.shape[1:]])
    came_counts.set_shape([rewrite.plan.workers])
    of_others = (tf.reduce_sum(rows, axis=0) - rows[rewrite.rank]) * tensor.shape[1:].num_elements()
    values = tf.unstack(of_others, num=len(variables))
    rewrite.sent += [Sent(tensor, 1, variable, each) for variable, each in zip(variables, values, strict=True)]
    return came, came_counts


def _first_rows(tables: Sequence[Table], ranks: int) -> list[int]:
    """Concatenates a rank's rows of all tables. Returns the position of each table's first row in this concatenation,
    and the total number of rows."""
    return list(itertools.accumulate((-(-table.rows // ranks) for table in tables), initial=0))


def _by_table(came: tf.Tensor, counts: tf.Tensor, starts: list[int]) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
    """Divides the received ids among the tables. Returns each table's ids relative to its first row, and the number of
    ids [ranks, tables]."""
    tables, ranks = len(starts) - 1, counts.shape[0]
    number = tf.searchsorted(tf.constant(starts[1:-1], came.dtype), came, side="right")
    sender = tf.repeat(tf.range(ranks), counts)
    of_pair = tf.math.bincount(sender * tables + number, minlength=ranks * tables, maxlength=ranks * tables)
    parts = tf.dynamic_partition(came, number, tables)
    return tuple(part - start for part, start in zip(parts, starts, strict=False)), tf.reshape(of_pair, [ranks, tables])


def _interleave(flat: Sequence[tf.Tensor], counts: tf.Tensor, ranks: int) -> tf.Tensor:
    """Concatenates the values of all tables: first all values for rank 0, then all values for rank 1, and so on. Each
    table's values must be ordered by rank."""
    pieces = [tf.split(each, counts[:, number], num=ranks) for number, each in enumerate(flat)]
    return tf.concat([of_table[rank] for rank in range(ranks) for of_table in pieces], axis=0)


def _deinterleave(message: tf.Tensor, counts: tf.Tensor, ranks: int) -> list[tf.Tensor]:
    tables = counts.shape[1]
    pieces = tf.split(message, tf.reshape(counts, [-1]), num=ranks * tables)
    return [tf.concat(pieces[number::tables], axis=0) for number in range(tables)]
