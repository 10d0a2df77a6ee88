"""Restores the order of rows that were distributed round-robin: holder i mod n has row i."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def row_order(counts: tf.Tensor) -> tf.Tensor:
    """Returns the positions of rows 0, 1, … in the concatenated rows of holder 0, holder 1, …

    `counts` [n] (int32 or int64) contains the number of rows of each holder. The graph computes the order at run time,
    because a constant would be as long as the variable.
    """
    holders = counts.shape[0]
    row = tf.range(tf.reduce_sum(counts))
    return tf.gather(tf.cumsum(counts, exclusive=True), row % holders) + row // holders
