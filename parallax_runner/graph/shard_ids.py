"""The shard of the data that a replica reads: two numbers in the graph, which the rewrite sets for each replica."""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2

from parallax_runner.graph.all_nodes import all_nodes

# An attribute that marks the constants that contain these numbers. Unlike a name or a collection, the attribute
# survives export, import and copying into a function.
ATTRIBUTE = "_parallax_runner_shard"
NUM_SHARDS = "num_shards"
SHARD_ID = "shard_id"
ON_ONE_DEVICE = {NUM_SHARDS: 1, SHARD_ID: 0}


def shard_number(which: str) -> tf.Tensor:
    """Returns an int64 scalar that `set_shards` sets: NUM_SHARDS (initially 1) or SHARD_ID (initially 0)."""
    number = tf.constant(ON_ONE_DEVICE[which], tf.int64, name=f"{which}/on_one_device")
    number.op._set_attr(ATTRIBUTE, attr_value_pb2.AttrValue(s=which.encode()))
    # The placeholder hides the constant's value, which would otherwise become part of static shapes.
    return tf.placeholder_with_default(number, [], name=which)


def set_shards(graph_def: tf.GraphDef, *, num_shards: int, shard_id: int) -> tf.GraphDef:
    """Returns a copy of `graph_def` that reads the data of replica `shard_id` out of `num_shards` replicas.

    The function library is searched too, because dataset functions can contain copies of these numbers. Functions of a
    one-shot iterator always contain copies.
    """
    numbers = {NUM_SHARDS: num_shards, SHARD_ID: shard_id}
    sharded = tf.GraphDef()
    sharded.CopyFrom(graph_def)
    for node in all_nodes(sharded):
        if ATTRIBUTE in node.attr:
            number = numbers[node.attr[ATTRIBUTE].s.decode()]
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number, tf.int64, []))
    return sharded
