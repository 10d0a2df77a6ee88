"""Restores the order of rows that were distributed in turn: row i to holder i mod n."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def row_order(counts: tf.Tensor) -> tf.Tensor:
    """Returns the places of rows 0, 1, … when all rows of holder 0 come first, then all rows of holder 1, and so on.

    counts [n] (int32 or int64) is the number of rows of each holder. The graph computes the order at run time, because
    a constant would be as long as the variable.
    """
    holders = counts.shape[0]
    row = tf.range(tf.reduce_sum(counts))
    return tf.gather(tf.cumsum(counts, exclusive=True), row % holders) + row // holders
