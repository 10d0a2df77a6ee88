"""A mutex on server 0. A push holds the mutex while it reads and writes variables, and a checkpoint holds the mutex
while it reads variables.

The mutex keeps pushes from interleaving: no update is lost, and a variable and its slots reflect the same pushes. The
mutex also makes the number of pushes between a replica's pull and its own push well defined
(docs/design/0018-asynchrony.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.devices import named_server, server_device
from parallax_runner.rewrite.rewrite_state import Rewrite


def make_mutex(rewrite: Rewrite) -> tf.Tensor:
    """Returns the handle of the mutex, which all replicas of a plan share."""
    with tf.device(server_device(0)):
        return tf.raw_ops.MutexV2(shared_name=f"turn/{rewrite.plan.fingerprint[:16]}")


def hold_mutex(mutex: tf.Tensor, guarded: set[tf.Operation], step: set[tf.Operation]) -> tf.Tensor:
    """Makes the `guarded` ops of a step run only while the step holds the mutex. Returns the lock, which must be
    released.

    The mutex is requested once all inputs that these ops read from outside have arrived on the ops' devices. Ops
    between guarded ops run on server 0. Therefore, the holder of the mutex never waits for a worker, which may be busy.
    """
    inside = _depending_on(guarded, step)
    between = (inside & edit.ancestors(guarded)) - guarded
    for op in between:
        if edit.is_plain(op) and named_server(op.device) is None:
            op._set_device(server_device(0))
    arrived = _bring_together(guarded | between, inside | guarded)
    with tf.device(server_device(0)), tf.control_dependencies(arrived):
        held = tf.raw_ops.MutexLock(mutex=mutex)
    by_device: dict[str, tf.Operation] = {}
    for op in sorted(guarded, key=lambda op: op.name):
        if op.device not in by_device:
            # Sends one message per device, no matter how many ops on the device wait for the mutex.
            with tf.device(op.device or None), tf.control_dependencies([held.op]):
                by_device[op.device] = tf.no_op()
        op._add_control_input(by_device[op.device])
    return held


def _bring_together(ops: set[tf.Operation], inside: set[tf.Operation]) -> list[tf.Operation]:
    """Copies the outside inputs of `ops` to the ops' devices. Returns, for each device, an op that runs when all inputs
    have arrived.

    Without the copies, a tensor and the signal of its arrival would be two messages, and the signal might arrive first.
    """
    here: dict[tuple[str, str], tf.Tensor] = {}
    needs: dict[str, set[tf.Operation]] = {}
    for op in sorted(ops, key=lambda op: op.name):
        awaited = {control for control in op.control_inputs if control not in inside}
        if awaited:
            edit.set_control_inputs(op, set(op.control_inputs) - awaited)
        of_device = needs.setdefault(op.device, set())
        of_device |= awaited
        for index, tensor in enumerate(op.inputs):
            if tensor.op in inside or tensor.op.type == "VarHandleOp":
                continue
            key = (tensor.name, op.device)
            if key not in here:
                here[key] = _on_device(tensor, op.device)
            op._update_input(index, here[key])
            of_device.add(here[key].op)
    arrived = []
    for device, of_device in needs.items():
        with tf.device(device or None):
            arrived.append(_group(of_device))
    return arrived


def _on_device(tensor: tf.Tensor, device: str) -> tf.Tensor:
    if tensor.op.device == device:
        return tensor
    with tf.device(device):
        return tf.identity(tensor)


def release_mutex(held: tf.Tensor, after: Iterable[tf.Operation]) -> tf.Operation:
    """Releases the mutex when all ops in `after` have run."""
    with tf.device(server_device(0)), tf.control_dependencies([_group(after)]):
        return tf.raw_ops.ConsumeMutexLock(mutex_lock=held)


def _depending_on(guarded: set[tf.Operation], step: set[tf.Operation]) -> set[tf.Operation]:
    """Returns the ops of the step that depend on any of the `guarded` ops."""
    found: set[tf.Operation] = set()
    for op in edit.in_order(step):
        needs = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        if any(need in guarded or need in found for need in needs):
            found.add(op)
    return found


def _group(ops: Iterable[tf.Operation]) -> tf.Operation:
    return tf.group(*sorted(ops, key=lambda op: op.name))
