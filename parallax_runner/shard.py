"""Gives each replica its own part of a `tf.data.Dataset`, with the same two functions as Parallax's `shard` module."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.shard_ids import NUM_SHARDS, SHARD_ID, shard_number


def create_num_shards_and_shard_id() -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two int64 scalars: the number of replicas and the index of this replica.

    On one device, they are 1 and 0. In a distributed run, each replica reads its own values. You can use them anywhere
    in the graph, including in functions that are passed to `Dataset.map`.
    """
    return shard_number(NUM_SHARDS), shard_number(SHARD_ID)


def shard(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the elements of `dataset` whose position modulo `num_shards` is `shard_id`. On one device, this function
    returns all elements.

    Together, the replicas see every element once. Shard file names or records before you shuffle or repeat them: the
    input of this function must have the same order on every replica. If the number of elements is not divisible by the
    number of replicas, the last replicas get one element fewer, and the last synchronous step waits for these replicas
    forever. In that case, repeat the dataset.
    """
    num_shards, shard_id = create_num_shards_and_shard_id()
    return dataset.shard(num_shards, shard_id)
