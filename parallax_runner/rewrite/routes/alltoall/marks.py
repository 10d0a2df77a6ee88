"""Marks on rows of an exchange: which are among others, and how many there are by rank."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf


def are_among(places: tf.Tensor, others: tf.Tensor, rows: int) -> tf.Tensor:
    """Which of `places` [n] are among `others` [m], all of them places of `rows` rows (bool [n])."""
    none = tf.zeros([rows], tf.bool)
    marked = tf.tensor_scatter_nd_update(none, others[:, tf.newaxis], tf.ones_like(others, tf.bool))
    return tf.gather(marked, places)


def count_by_rank(marks: Sequence[tf.Tensor], counts: tf.Tensor, ranks: int) -> tf.Tensor:
    """How many rows of each rank and table are marked (int32 [ranks, tables]).

    `marks[t]` (bool) are of table t's rows, rank after rank, `counts` [ranks, tables] of each.
    """
    of_table = [
        tf.math.unsorted_segment_sum(tf.cast(each, tf.int32), tf.repeat(tf.range(ranks), counts[:, table]), ranks)
        for table, each in enumerate(marks)
    ]
    return tf.stack(of_table, axis=1)


def sum_of_others(counts: tf.Tensor, rank: int) -> tf.Tensor:
    """The sum of the counts [ranks] of the other ranks."""
    return tf.reduce_sum(counts) - counts[rank]
