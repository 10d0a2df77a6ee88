"""Values of several tables in one tensor, so that one op processes the values of all tables.

A TensorFlow op takes a few microseconds, even for few values. If each table of a model with many small tables had its
own ops, these ops would take most of an exchange's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class ByTable:
    """Values of several tables.

    `whole` ([n, ...]) contains the values of table 0, then the values of table 1, and so on. `parts[t]` contains the
    values of table t, and `lengths` (int32 [tables]) the number of values of each table.
    """

    whole: tf.Tensor
    parts: tuple[tf.Tensor, ...]
    lengths: tf.Tensor

    @property
    def numbers(self) -> tf.Tensor:
        """The table of each value (int32 [n])."""
        return numbers(self.lengths)

    @property
    def starts(self) -> tf.Tensor:
        """The position of the first value of each table (int32 [tables])."""
        return tf.cumsum(self.lengths, exclusive=True)

    def of(self, members: Sequence[int]) -> ByTable:
        """Returns the values of the tables `members`."""
        if is_all(members, len(self.parts)):
            return self
        parts = tuple(self.parts[member] for member in members)
        return ByTable(tf.concat(parts, axis=0), parts, tf.gather(self.lengths, members))


def cut(whole: tf.Tensor, lengths: tf.Tensor) -> ByTable:
    """Splits `whole` by table. `lengths` (int32 [tables]) contains the number of values of each table."""
    (tables,) = lengths.shape.as_list()
    if tables == 1:
        return ByTable(whole, (whole,), lengths)
    parts = tf.split(whole, lengths, num=tables)
    for part in parts:
        part.set_shape([None, *whole.shape[1:]])
    return ByTable(whole, tuple(parts), lengths)


def joined(parts: Sequence[tf.Tensor]) -> ByTable:
    """Joins the values of all tables into one tensor."""
    return ByTable(tf.concat(parts, axis=0), tuple(parts), tf.stack([tf.shape(part)[0] for part in parts]))


def is_all(members: Sequence[int], tables: int) -> bool:
    """Returns whether `members` are all tables, in order."""
    return list(members) == list(range(tables))


def numbers(lengths: tf.Tensor) -> tf.Tensor:
    """Returns the table (or rank) of each value (int32 [n]), given the number of values of each table (or rank)."""
    ends = tf.cumsum(lengths)
    return _upper_bound(ends, tf.range(ends[-1]))


def numbers_of_keys(keys: tf.Tensor, starts: Sequence[int]) -> tf.Tensor:
    """Returns the table of each key (int32 [n]). The keys of table t are at least `starts[t]`, and less than
    `starts[t + 1]`."""
    return _upper_bound(tf.constant(starts[1:-1], keys.dtype), keys)


def of_numbers(values: Sequence[int], numbers: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns `values[t]` for each table index t in `numbers`."""
    return tf.gather(tf.constant(values, dtype), numbers)


def count(numbers: tf.Tensor, most: int, marks: tf.Tensor | None = None) -> tf.Tensor:
    """Counts how often each number occurs (int32 [most]). Numbers that `marks` (bool) does not mark are left out."""
    ones = tf.ones_like(numbers) if marks is None else tf.cast(marks, tf.int32)
    return tf.math.unsorted_segment_sum(ones, numbers, most)


def _upper_bound(bounds: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Counts, for each value, the ascending `bounds` that are not greater than the value."""
    found = tf.raw_ops.UpperBound(sorted_inputs=tf.reshape(bounds, [1, -1]), values=tf.reshape(values, [1, -1]))
    return tf.reshape(found, [-1])
