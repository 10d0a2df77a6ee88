"""Rows that are dealt out in turn, row i to holder i mod n, brought back into their order."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def row_order(counts: tf.Tensor) -> tf.Tensor:
    """Where row 0, 1, … stands if first all rows of holder 0 come, then those of holder 1, and so on.

    counts [n] (int32 or int64) are the rows of each holder. Computed when it runs: a constant would be as long as the
    variable.
    """
    holders = counts.shape[0]
    row = tf.range(tf.reduce_sum(counts))
    return tf.gather(tf.cumsum(counts, exclusive=True), row % holders) + row // holders
