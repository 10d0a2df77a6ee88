"""Limits how many steps apart replicas may be if they do not wait for each other.

This is bounded staleness (Ho and others, NIPS 2013, «stale synchronous parallel»). Every replica has a queue on server
0 that initially contains k permits. The replica takes a permit for each step, and gets a new permit when the slowest
replica has completed another step.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.rewrite.rewrite_state import Rewrite


def count_round(rewrite: Rewrite, *, after: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Counts this replica's step. If this replica was the slowest, gives every replica a permit. Runs under the mutex.

    Sets `rewrite.coordination.may_start`, the op that takes a permit. Does nothing if the plan has no bound.
    """
    plan = rewrite.plan
    if plan.options.staleness is None:
        return []
    with tf.device(server_device(0)), tf.name_scope("pace/"):
        key = plan.fingerprint[:16]
        done = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[plan.replicas], shared_name=f"done/{key}")
        queues = [
            tf.FIFOQueue(capacity=-1, dtypes=[tf.bool], shapes=[[]], shared_name=f"permits/{key}/{replica}")
            for replica in range(plan.replicas)
        ]
        zeros = tf.zeros([plan.replicas], tf.int64)
        rewrite.initializers.shared += [
            tf.raw_ops.AssignVariableOp(resource=done, value=zeros),
            *(queue.enqueue_many(tf.fill([plan.options.staleness], True)) for queue in queues),
        ]
        with tf.control_dependencies(sorted(after, key=lambda op: op.name)):
            before = tf.reduce_min(tf.raw_ops.ReadVariableOp(resource=done, dtype=tf.int64))
        with tf.control_dependencies([before.op]):
            step_done = tf.raw_ops.ResourceScatterAdd(
                resource=done, indices=tf.constant(rewrite.rank), updates=tf.constant(1, tf.int64)
            )
        with tf.control_dependencies([step_done]):
            now = tf.reduce_min(tf.raw_ops.ReadVariableOp(resource=done, dtype=tf.int64))
        permits = tf.fill([now - before], True)
        given = [queue.enqueue_many(permits) for queue in queues]
        rewrite.coordination.may_start = queues[rewrite.rank].dequeue().op
    return [step_done, *given]
