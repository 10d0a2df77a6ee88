"""Admits replicas' gradients to a step that can complete without some of them (comm.ps.backup_workers).

Server 0 counts the completed steps, and the places that are already taken in the next step. A replica that has computed
its gradients requests a place. With N replicas and b backup workers, the first N-b replicas get a place. The last of
these replicas leads: it updates the variables, and sends the new number of steps to all replicas.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.conditional import only_if
from parallax_runner.rewrite.distributed_graph import CLOSED, Admission
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.ps.mutex import release_mutex
from parallax_runner.routes.ps.state import PsState

# When training ends, this many places are marked as taken. An update in progress may still free some places, but far
# fewer, so no replica gets a place after that.
ALL_PLACES = 2**40


def ask_for_admission(rewrite: Rewrite, mutex: tf.Tensor) -> None:
    """Makes this replica push its gradients only if the replica is admitted. Sets the fields `admission` and `leads` of
    `rewrite.coordination`."""
    begun = _local(rewrite, "begun")
    gradients = rewrite.gradients_by(Route.PS)
    computed = [tensor.op for one in gradients for tensor in one.tensors]
    with tf.name_scope("admission/"):
        with tf.control_dependencies(computed):
            step = tf.raw_ops.ReadVariableOp(resource=begun, dtype=tf.int64)
        with tf.device(server_device(0)):
            steps_done, taken = _shared(rewrite, "steps_done"), _shared(rewrite, "taken")
            step = tf.identity(step)  # copied to this server before the mutex is requested
            with tf.control_dependencies([step.op]):
                held = tf.raw_ops.MutexLock(mutex=mutex)
            with tf.control_dependencies([held.op]):
                is_current = tf.equal(tf.raw_ops.ReadVariableOp(resource=steps_done, dtype=tf.int64), step)
                before = tf.raw_ops.ReadVariableOp(resource=taken, dtype=tf.int64)
            admitted = tf.logical_and(is_current, before < rewrite.plan.contributors)
            rewrite.coordination.leads = tf.logical_and(admitted, tf.equal(before, rewrite.plan.contributors - 1))
            place_taken = tf.raw_ops.AssignAddVariableOp(resource=taken, value=tf.cast(admitted, tf.int64))
        rewrite.step_ops.append(release_mutex(held, [place_taken]))
        rewrite.initializers.shared += [
            tf.raw_ops.AssignVariableOp(resource=steps_done, value=tf.constant(rewrite.first_step, tf.int64)),
            tf.raw_ops.AssignVariableOp(resource=taken, value=tf.constant(0, tf.int64)),
        ]
        rewrite.initializers.own.append(
            tf.raw_ops.AssignVariableOp(resource=begun, value=tf.constant(rewrite.first_step, tf.int64))
        )
        rewrite.coordination.admission = Admission(
            next_step=_next_step(rewrite, begun),
            admitted=admitted,
            close=_close(rewrite, mutex),
            steps_done=tf.raw_ops.ReadVariableOp(resource=steps_done, dtype=tf.int64),
        )
        for one in gradients:
            indices = None if one.indices is None else only_if(admitted, one.indices)
            rewrite.of_route(PsState).pushes[one.name] = (only_if(admitted, one.values), indices)


def count_step(rewrite: Rewrite, *, after: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns the ops that the leader runs under the mutex after the update. These ops open the next step for
    admission."""
    with tf.device(server_device(0)), tf.name_scope("step_done/"):
        steps_done, taken = _shared(rewrite, "steps_done"), _shared(rewrite, "taken")
        with tf.control_dependencies([tf.group(*sorted(after, key=lambda op: op.name))]):
            freed = tf.raw_ops.AssignSubVariableOp(
                resource=taken, value=tf.constant(rewrite.plan.contributors, tf.int64)
            )
            counted = tf.raw_ops.AssignAddVariableOp(resource=steps_done, value=tf.constant(1, tf.int64))
        with tf.control_dependencies([counted]):
            now = tf.raw_ops.ReadVariableOp(resource=steps_done, dtype=tf.int64)
        return [freed, *_tell_all(rewrite, now)]


def _next_step(rewrite: Rewrite, begun: tf.Tensor) -> tf.Tensor:
    """Returns the latest number of completed steps that this replica has received since the last call. Waits until at
    least one number has arrived."""
    with tf.device(server_device(0)):
        queue = _queue(rewrite, rewrite.rank)
        first = queue.dequeue()
        with tf.control_dependencies([first]):
            count = queue.size()
        told = tf.concat([tf.expand_dims(first, 0), queue.dequeue_many(count)], axis=0)
        newest = tf.where(tf.reduce_any(tf.equal(told, CLOSED)), tf.constant(CLOSED, tf.int64), tf.reduce_max(told))
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=begun, value=newest)]):
        return tf.identity(newest, name="next_step")


def _close(rewrite: Rewrite, mutex: tf.Tensor) -> tf.Operation:
    with tf.device(server_device(0)):
        held = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([held.op]):
            closed = tf.raw_ops.AssignAddVariableOp(
                resource=_shared(rewrite, "taken"), value=tf.constant(ALL_PLACES, tf.int64)
            )
        with tf.control_dependencies([closed]):
            told = _tell_all(rewrite, tf.constant(CLOSED, tf.int64))
        return tf.group(release_mutex(held, [closed, *told]), name="close")


def _tell_all(rewrite: Rewrite, number: tf.Tensor) -> list[tf.Operation]:
    with tf.device(server_device(0)):
        return [_queue(rewrite, replica).enqueue(number) for replica in range(rewrite.plan.replicas)]


def _queue(rewrite: Rewrite, replica: int) -> tf.QueueBase:
    name = f"steps/{rewrite.plan.fingerprint[:16]}/{replica}"
    return tf.FIFOQueue(capacity=-1, dtypes=[tf.int64], shapes=[[]], shared_name=name)


def _shared(rewrite: Rewrite, name: str) -> tf.Tensor:
    key = f"{name}/{rewrite.plan.fingerprint[:16]}"
    return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=key)


def _local(rewrite: Rewrite, name: str) -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"{name}/{rewrite.rank}")
