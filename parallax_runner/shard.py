"""Gives each replica its own part of a `tf.data.Dataset`: the same two functions as the original's `shard`."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.shard_ids import NUM_SHARDS, SHARD_ID, shard_number


def create_num_shards_and_shard_id() -> tuple[tf.Tensor, tf.Tensor]:
    """Two scalars (int64): the number of replicas and the number of this one.

    They are 1 and 0 on one device; in a distributed run each replica reads its own. They may be used anywhere in the
    graph, inside functions of datasets too.
    """
    return shard_number(NUM_SHARDS), shard_number(SHARD_ID)


def shard(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The elements of `dataset` whose position is `shard_id` modulo `num_shards`: all of them on one device.

    Together the replicas see every element once. Shard names of files, or records, before they are shuffled or
    repeated; what stands before must give every replica the same order. Where elements cannot be dealt out evenly the
    last replicas end one element earlier: a synchronous step then waits for them, so repeat the dataset.
    """
    num_shards, shard_id = create_num_shards_and_shard_id()
    return dataset.shard(num_shards, shard_id)
