"""Queues on a server through which the chief tells other ranks that something is done, or what came out.

One queue a rank, so that a fast rank cannot take what is meant for a slow one (`tf.train.SyncReplicasOptimizer` has
one for all, and needs the step in the token to notice).
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.rewrite.state import Rewrite


def announce(rewrite: Rewrite, value: tf.Tensor, *, name: str) -> list[tf.Operation]:
    """Ops of the chief that give every other rank `value` once."""
    with tf.device(server_device(0)):
        return [_queue(rewrite, value, name, rank).enqueue(value) for rank in range(1, rewrite.plan.replicas)]


def receive(rewrite: Rewrite, value: tf.Tensor, *, name: str) -> tf.Tensor:
    """What the chief announced to this rank; `value` gives dtype and shape only."""
    with tf.device(server_device(0)):
        received = _queue(rewrite, value, name, rewrite.rank).dequeue()
    received.set_shape(value.shape)
    return received


def _queue(rewrite: Rewrite, value: tf.Tensor, name: str, rank: int) -> tf.QueueBase:
    # A server may serve one graph after another; what a value is differs between them, and between two plans of one.
    graph, dtype = rewrite.plan.fingerprint[:16], value.dtype.name
    return tf.FIFOQueue(capacity=2, dtypes=[value.dtype], shared_name=f"announce/{graph}/{name}/{dtype}/{rank}")
