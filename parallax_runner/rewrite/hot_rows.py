"""Rows that nearly every step touches on every rank: each rank has a copy, whose gradients are allreduced.

A variable's hot rows are known from the plan, so that every rank tells by itself where an id belongs.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Shard


def find_hot(ids: tf.Tensor, shard: Shard) -> tuple[tf.Tensor, tf.Tensor]:
    """For each of ids [n] its place among the hot rows (int32, any where it is not hot), and whether it is hot."""
    hot = tf.constant(shard.hot, ids.dtype)
    place = tf.minimum(tf.searchsorted(hot, ids), len(shard.hot) - 1)
    return place, tf.equal(tf.gather(hot, place), ids)


def split_hot(ids: tf.Tensor, shards: list[Shard]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Of ids [n] where those stand that are not hot, where those that are, and the latter's places among hot rows."""
    _, hot = shards
    place, is_hot = find_hot(ids, hot)
    cold_at, hot_at = tf.dynamic_partition(tf.range(tf.size(ids)), tf.cast(is_hot, tf.int32), 2)
    return cold_at, hot_at, tf.gather(place, hot_at)
