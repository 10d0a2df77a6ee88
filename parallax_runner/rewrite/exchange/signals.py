"""Queues on a server. The chief uses them to signal to other ranks that an action is done, or to send them a result.

Each rank has its own queue, so a fast rank cannot take a message that is meant for a slow rank.
`tf.train.SyncReplicasOptimizer` has one queue for all ranks, and its tokens contain the step number, so that a token
for another step can be detected.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.rewrite.rewrite_state import Rewrite


def announce(rewrite: Rewrite, value: tf.Tensor, *, name: str) -> list[tf.Operation]:
    """Returns ops for the chief that send `value` once to every other rank."""
    with tf.device(server_device(0)):
        return [_queue(rewrite, value, name, rank).enqueue(value) for rank in range(1, rewrite.plan.replicas)]


def receive(rewrite: Rewrite, value: tf.Tensor, *, name: str) -> tf.Tensor:
    """Receives the value that the chief announced to this rank. Only the dtype and the shape of `value` are used."""
    with tf.device(server_device(0)):
        received = _queue(rewrite, value, name, rewrite.rank).dequeue()
    received.set_shape(value.shape)
    return received


def _queue(rewrite: Rewrite, value: tf.Tensor, name: str, rank: int) -> tf.QueueBase:
    # A server can serve several graphs in succession, and a name can refer to different values in different graphs or
    # plans.
    graph, dtype = rewrite.plan.fingerprint[:16], value.dtype.name
    return tf.FIFOQueue(capacity=2, dtypes=[value.dtype], shared_name=f"announce/{graph}/{name}/{dtype}/{rank}")
