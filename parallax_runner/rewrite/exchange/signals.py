"""Queues on a server through which the chief tells other ranks that something is done, or sends them a result.

Each rank has its own queue, so a fast rank cannot take a message for a slow one. `tf.train.SyncReplicasOptimizer` has
one queue for all ranks, so its tokens contain the step, to detect such mix-ups.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.rewrite.state import Rewrite


def announce(rewrite: Rewrite, value: tf.Tensor, *, name: str) -> list[tf.Operation]:
    """Returns ops for the chief that send `value` once to every other rank."""
    with tf.device(server_device(0)):
        return [_queue(rewrite, value, name, rank).enqueue(value) for rank in range(1, rewrite.plan.replicas)]


def receive(rewrite: Rewrite, value: tf.Tensor, *, name: str) -> tf.Tensor:
    """Receives what the chief announced to this rank. `value` only gives the dtype and shape."""
    with tf.device(server_device(0)):
        received = _queue(rewrite, value, name, rewrite.rank).dequeue()
    received.set_shape(value.shape)
    return received


def _queue(rewrite: Rewrite, value: tf.Tensor, name: str, rank: int) -> tf.QueueBase:
    # A server may serve one graph after another. The same name may stand for another value in another graph or plan.
    graph, dtype = rewrite.plan.fingerprint[:16], value.dtype.name
    return tf.FIFOQueue(capacity=2, dtypes=[value.dtype], shared_name=f"announce/{graph}/{name}/{dtype}/{rank}")
