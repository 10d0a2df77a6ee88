"""Rows of several shapes and dtypes in one message, as numbers of one dtype.

A message contains all numbers for rank 0, then all numbers for rank 1, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

# Integers that carry the bits of other dtypes, by size in bytes.
CARRIERS = {1: tf.uint8, 2: tf.int16, 4: tf.int32, 8: tf.int64}


@dataclass(frozen=True)
class MixedMessage:
    """Describes a message. `kinds` are rows of each kind [n, ...], whose number does not matter, and `ranks` is the
    number of ranks."""

    kinds: Sequence[tf.Tensor]
    ranks: int

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the numbers: that of the rows if they have only one, otherwise integers of the smallest size."""
        dtypes = {rows.dtype for rows in self.kinds}
        if len(dtypes) == 1:
            return next(iter(dtypes))
        return CARRIERS[min(dtype.size for dtype in dtypes)]

    @property
    def widths(self) -> list[int]:
        """The length of a row of each kind in numbers."""
        return [rows.shape[1:].num_elements() * rows.dtype.size // self.dtype.size for rows in self.kinds]

    def joined(self, rows: Sequence[tf.Tensor], counts: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of a message. `rows` are the rows of each kind, ordered by rank, and `counts` (int32
        [ranks, kinds]) contains the number of rows by rank and kind."""
        lengths = counts * tf.constant(self.widths)
        flat = [tf.reshape(tf.bitcast(each, self.dtype), [-1]) for each in rows]
        pieces = [tf.split(each, lengths[:, kind], num=self.ranks) for kind, each in enumerate(flat)]
        return tf.concat([of_kind[rank] for rank in range(self.ranks) for of_kind in pieces], axis=0)

    def split(self, message: tf.Tensor, counts: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows of each kind, ordered by rank. `counts` has the same meaning as in `joined`."""
        number_of_kinds = len(self.kinds)
        lengths = tf.reshape(counts * tf.constant(self.widths), [-1])
        pieces = tf.split(message, lengths, num=self.ranks * number_of_kinds)
        flat = [tf.concat(pieces[kind::number_of_kinds], axis=0) for kind in range(number_of_kinds)]
        return [_rows_of(each, like) for each, like in zip(flat, self.kinds, strict=True)]


def _rows_of(numbers: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Converts numbers back to rows with the dtype and the row shape of `like`."""
    numbers_per_value = like.dtype.size // numbers.dtype.size
    value_shape = [] if numbers_per_value == 1 else [numbers_per_value]
    return tf.bitcast(tf.reshape(numbers, [-1, *like.shape[1:], *value_shape]), like.dtype)
