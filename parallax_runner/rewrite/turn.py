"""Whose turn it is: one lock on server 0 that a push holds while it reads and writes variables, and a checkpoint too.

So pushes do not interleave: no update is lost, a variable and its slots contain the same pushes, and how many pushes
came between a replica's pull and its own is a plain number (docs/design/0018-asynchrony.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import Rewrite
from parallax_runner.rewrite.shards import server_device


def make_turn(rewrite: Rewrite) -> tf.Tensor:
    """The lock's handle; one for all replicas of a plan."""
    with tf.device(server_device(0)):
        return tf.raw_ops.MutexV2(shared_name=f"turn/{rewrite.plan.fingerprint[:16]}")


def take_turn(turn: tf.Tensor, guarded: set[tf.Operation], step: set[tf.Operation]) -> tf.Tensor:
    """Lets `guarded` ops of a step run only while it holds the lock; returns the lock that is held, to be given back.

    The lock is asked for when all that these ops need from elsewhere has arrived, so that nobody waits for a replica
    that is still computing.
    """
    inside = _depending_on(guarded, step)
    between = inside & edit.ancestors(guarded)
    outside = {
        need
        for op in guarded | between
        for need in (*(tensor.op for tensor in op.inputs), *op.control_inputs)
        if need not in inside | guarded and need.type != "VarHandleOp"
    }
    with tf.device(server_device(0)), tf.control_dependencies([_group(outside)]):
        held = tf.raw_ops.MutexLock(mutex=turn)
    by_device: dict[str, tf.Operation] = {}
    for op in sorted(guarded, key=lambda op: op.name):
        if op.device not in by_device:
            # One message a device, however many ops wait for it there.
            with tf.device(op.device or None), tf.control_dependencies([held.op]):
                by_device[op.device] = tf.no_op()
        op._add_control_input(by_device[op.device])
    return held


def end_turn(held: tf.Tensor, after: Iterable[tf.Operation]) -> tf.Operation:
    """Gives the lock back when all of `after` have run."""
    with tf.device(server_device(0)), tf.control_dependencies([_group(after)]):
        return tf.raw_ops.ConsumeMutexLock(mutex_lock=held)


def _depending_on(guarded: set[tf.Operation], step: set[tf.Operation]) -> set[tf.Operation]:
    """Ops of the step that cannot run before one of `guarded` has."""
    found: set[tf.Operation] = set()
    for op in edit.in_order(step):
        needs = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        if any(need in guarded or need in found for need in needs):
            found.add(op)
    return found


def _group(ops: Iterable[tf.Operation]) -> tf.Operation:
    return tf.group(*sorted(ops, key=lambda op: op.name))
