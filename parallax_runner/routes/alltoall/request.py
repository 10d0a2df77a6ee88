"""Finds the distinct ids of lookups, and sends them to the ranks that own their rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.chosen import backend
from parallax_runner.rewrite.every_route.merge import ascending
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.alltoall.by_table import (
    ByTable,
    count,
    cut,
    joined,
    numbers,
    numbers_of_keys,
    of_numbers,
)
from parallax_runner.routes.alltoall.row_exchange import Exchange, Side, Table, count_by_rank, side, swap

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Keys:
    """The distinct ids of several tables, in ascending order of table and id.

    A key (int32 or int64) is an id plus the first key of its table. The first key is a multiple of the number of ranks,
    so a key modulo this number is the rank of the key's owner. `positions` (int32) contains the position of each given
    id among the distinct ids of its table. `starts` contains the first key of each table, followed by a number that is
    greater than all keys.
    """

    keys: tf.Tensor
    positions: ByTable
    starts: tuple[int, ...]

    @property
    def numbers(self) -> tf.Tensor:
        """The table of each key."""
        return numbers_of_keys(self.keys, self.starts)

    @property
    def ids(self) -> tf.Tensor:
        """The distinct ids, by table."""
        return self.keys - of_numbers(self.starts[:-1], self.numbers, self.keys.dtype)


def keys_of(tables: Sequence[Table], ids: Sequence[tf.Tensor], ranks: int) -> Keys:
    """Finds the distinct ids. `ids[t]` can have any shape, and must contain ids of rows of table t."""
    starts = tuple(ranks * start for start in first_rows(tables, ranks))
    kernels, alike = backend().row_kernels(), of_one_dtype(ids)
    dtype = tf.int64 if starts[-1] > MAX_INT32 else alike[0].dtype
    if kernels is None:
        return _keys_without_kernels(tables, alike, starts, dtype)
    keys, positions, lengths = kernels.unique_ids(
        alike,
        rows=[table.rows for table in tables],
        first_keys=starts[:-1],
        names=[table.variable for table in tables],
        dtype=dtype,
    )
    return Keys(keys, cut(positions, lengths), starts)


def of_one_dtype(ids: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the ids as int64 if any are int64, otherwise as int32."""
    wide = tf.int64 if any(each.dtype == tf.int64 for each in ids) else tf.int32
    return [tf.cast(each, wide) for each in ids]


def _keys_without_kernels(
    tables: Sequence[Table], ids: Sequence[tf.Tensor], starts: tuple[int, ...], dtype: tf.DType
) -> Keys:
    given = joined([tf.reshape(each, [-1]) for each in ids])
    number = given.numbers
    checked = tf.cast(in_range(given.whole, number, tables), dtype)
    keys, positions = ascending(checked + of_numbers(starts[:-1], number, dtype))
    before = tf.cumsum(count(numbers_of_keys(keys, starts), len(tables)), exclusive=True)
    return Keys(keys, cut(positions - tf.gather(before, number), given.lengths), starts)


def ask_owners(rewrite: Rewrite, tables: Sequence[Table], keys: Keys, *, name: str, is_exact: bool = False) -> Exchange:
    """Sends distinct ids to the ranks that own their rows.

    This is a collective: all ranks must run it.
    """
    starts = first_rows(tables, rewrite.plan.workers)
    message, sent = requests(keys, starts, rewrite.plan.workers)
    variables = [table.variable for table in tables]
    came, came_counts = swap(rewrite, message, sent.counts, variables, name=f"{name}/ids")
    arrived, own = requested(came, came_counts, starts)
    return Exchange(rewrite, name, tuple(tables), sent, arrived, own, is_exact)


def requests(keys: Keys, starts: Sequence[int], ranks: int) -> tuple[tf.Tensor, Side]:
    """Returns what owners get to know: the positions of the requested rows among their own rows of all tables (int32 or
    int64), ordered by owner. `starts` are the `first_rows`."""
    dtype = tf.int64 if starts[-1] > MAX_INT32 else tf.int32
    kernels = backend().row_kernels()
    if kernels is not None:
        message, owners, counts = kernels.pack_ids(keys.keys, ranks=ranks, first_rows=starts[:-1], dtype=dtype)
        return message, side(owners, counts)
    owners = tf.cast(keys.keys % ranks, tf.int32)
    places = tf.cast(keys.keys // ranks, dtype)
    message = tf.concat(tf.dynamic_partition(places, owners, ranks), axis=0)
    return message, side(owners, count_by_rank(owners, keys.numbers, [ranks, len(starts) - 1]))


def requested(came: tf.Tensor, came_counts: tf.Tensor, starts: Sequence[int]) -> tuple[Side, ByTable]:
    """Returns the rows that ranks request from this rank, and their positions among this rank's own rows, given the
    `requests` of all ranks and their numbers (int32 [ranks])."""
    kernels, tables = backend().row_kernels(), len(starts) - 1
    if kernels is not None:
        ranks, counts, own = kernels.group_arrived(came, came_counts, first_rows=starts[:-1])
        arrived = side(ranks, counts)
        return arrived, cut(own, arrived.ranks.lengths)
    number, senders = numbers_of_keys(came, starts), numbers(came_counts)
    by_table = tf.concat(tf.dynamic_partition(tf.range(tf.size(came)), number, tables), axis=0)
    shape = [came_counts.shape[0], tables]
    arrived = side(tf.gather(senders, by_table), count_by_rank(senders, number, shape))
    own = tf.gather(came - of_numbers(starts[:-1], number, came.dtype), by_table)
    return arrived, cut(own, arrived.ranks.lengths)


def in_range(ids: tf.Tensor, numbers: tf.Tensor, tables: Sequence[Table]) -> tf.Tensor:
    """Asserts that each id is a row of its table. `numbers` contains the table of each id. Without this check, an owner
    could treat a wrong id as a row of another table."""
    rows = of_numbers([table.rows for table in tables], numbers, tf.int64)
    wide = tf.cast(ids, tf.int64)
    is_row = (wide >= 0) & (wide < rows)
    wrong = tf.reshape(tf.where(~is_row)[:1], [-1])
    names = tf.constant([f"«{table.variable}»" for table in tables])
    told = [
        "no row of the variable has this id (variable, number of rows, id):",
        tf.gather(names, tf.gather(numbers, wrong)),
        tf.gather(rows, wrong),
        tf.gather(ids, wrong),
    ]
    with tf.control_dependencies([tf.raw_ops.Assert(condition=tf.reduce_all(is_row), data=told)]):
        return tf.identity(ids)


def first_rows(tables: Sequence[Table], ranks: int) -> list[int]:
    """Returns the position of each table's first row in the concatenation of a rank's rows of all tables, followed by
    the total number of these rows."""
    return list(itertools.accumulate((-(-table.rows // ranks) for table in tables), initial=0))
