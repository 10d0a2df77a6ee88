"""Makes workers finish together if one worker may still run ops on the devices of another worker."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import named_workers, server_device
from parallax_runner.rewrite.rewrite_state import Rewrite


def leave_together(rewrite: Rewrite) -> tf.Operation | None:
    """Returns an op that each worker runs after its last step. The op completes when all workers have run it.

    Returns None if workers finish together even without this op. This is the case if each step waits for all workers,
    and each worker runs ops only on its own devices and on servers.
    """
    plan, coordination = rewrite.plan, rewrite.coordination
    may_end_apart = coordination.staleness is not None or coordination.admission is not None
    if not may_end_apart and not (plan.servers and named_workers(rewrite.single.meta_graph.graph_def)):
        return None
    return _leave(rewrite)


def _leave(rewrite: Rewrite) -> tf.Operation:
    plan, worker = rewrite.plan, rewrite.rank // rewrite.plan.replicas_per_worker
    key = plan.fingerprint[:16]
    with tf.device(server_device(0)), tf.name_scope("leave/"):
        left = tf.FIFOQueue(plan.workers, [tf.bool], [[]], shared_name=f"left/{key}")
        all_left = tf.FIFOQueue(plan.workers, [tf.bool], [[]], shared_name=f"all_left/{key}")
        if worker == 0:
            with tf.control_dependencies([left.dequeue_many(plan.workers - 1).op]):
                return tf.group(all_left.enqueue_many(tf.fill([plan.workers - 1], True)))
        with tf.control_dependencies([left.enqueue(True)]):
            return tf.group(all_left.dequeue())
