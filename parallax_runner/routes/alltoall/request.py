"""Finds the distinct ids of lookups, and sends them to the ranks that own their rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

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
from parallax_runner.routes.alltoall.row_exchange import Exchange, Table, count_by_rank, side, swap

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
    wide = tf.int64 if any(each.dtype == tf.int64 for each in ids) else tf.int32
    given = joined([tf.cast(tf.reshape(each, [-1]), wide) for each in ids])
    number = given.numbers
    starts = tuple(ranks * start for start in first_rows(tables, ranks))
    dtype = tf.int64 if starts[-1] > MAX_INT32 else wide
    checked = tf.cast(in_range(given.whole, number, tables), dtype)
    keys, positions = ascending(checked + of_numbers(starts[:-1], number, dtype))
    before = tf.cumsum(count(numbers_of_keys(keys, starts), len(tables)), exclusive=True)
    return Keys(keys, cut(positions - tf.gather(before, number), given.lengths), starts)


def ask_owners(rewrite: Rewrite, tables: Sequence[Table], keys: Keys, *, name: str, is_exact: bool = False) -> Exchange:
    """Sends distinct ids to the ranks that own their rows.

    This is a collective: all ranks must run it.
    """
    ranks = rewrite.plan.workers
    shape = [ranks, len(tables)]
    starts = first_rows(tables, ranks)
    owners = tf.cast(keys.keys % ranks, tf.int32)
    sent = side(owners, count_by_rank(owners, keys.numbers, shape))
    places = tf.cast(keys.keys // ranks, tf.int64 if starts[-1] > MAX_INT32 else tf.int32)
    message = tf.concat(tf.dynamic_partition(places, owners, ranks), axis=0)
    variables = [table.variable for table in tables]
    came, came_counts = swap(rewrite, message, sent.counts, variables, name=f"{name}/ids")
    number, senders = numbers_of_keys(came, starts), numbers(came_counts)
    by_table = tf.concat(tf.dynamic_partition(tf.range(tf.size(came)), number, len(tables)), axis=0)
    arrived = side(tf.gather(senders, by_table), count_by_rank(senders, number, shape))
    own = tf.gather(came - of_numbers(starts[:-1], number, came.dtype), by_table)
    return Exchange(rewrite, name, tuple(tables), sent, arrived, cut(own, arrived.ranks.lengths), is_exact)


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
