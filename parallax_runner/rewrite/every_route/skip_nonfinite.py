"""Pass: with train.on_nan=skip, make a step change no variable if any rank's loss or gradients are not finite.

The updates are made conditional in the same way as in TensorFlow 1's `tf.cond`: one input of each update goes through a
Switch, and ops that wait for the update wait for a Merge after the update. Collectives, pushes and the barrier run in
every step, skipped or not, so no rank is left waiting. Only the writes are skipped. global_step still advances, since
it counts steps.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.devices import server_device
from parallax_runner.graph.edit import is_write
from parallax_runner.rewrite.exchange.compression import half_dtype
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.signals import announce, receive
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.registry import uses_collectives

GLOBAL_STEP = "global_step"


@rewrite_pass(reads=["train_op"], writes=["step_ops", "sent", "applied"])
def skip_nonfinite_steps(rewrite: Rewrite) -> None:
    """Makes every write of the step conditional, and sets `rewrite.applied`, which tells whether the step was applied.

    Writes that gradients wait for, such as updates of batch statistics, are skipped only if this rank's own loss is not
    finite. A write that the loss itself waits for is not conditional, because it happens before the loss is known.
    """
    if not rewrite.skip_nonfinite:
        return
    loss = rewrite.tensor(rewrite.single.loss)
    raw = [rewrite.tensor(name) for name in dict.fromkeys(g.values for g in rewrite.single.gradients)]
    travelling = [_as_sent(rewrite, tensor) for tensor in raw]
    before_loss = edit.ancestors([loss.op])
    before_gradients = edit.ancestors([tensor.op for tensor in raw])
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops])
    writes = [op for op in edit.in_order(step) if is_write(op) and not _counts_steps(op) and op not in before_loss]
    with tf.name_scope("skip_nonfinite/"):
        own_loss = _all_finite([loss])
        applied = _on_all_ranks(rewrite, _all_finite([loss, *travelling]))
        for op in writes:
            _make_conditional(op, own_loss if op in before_gradients else applied)
    rewrite.applied = applied


def _as_sent(rewrite: Rewrite, tensor: tf.Tensor) -> tf.Tensor:
    """Casts a gradient to its wire dtype. A finite gradient may be too large for that dtype."""
    half = half_dtype(rewrite, tensor.dtype)
    return tensor if half is None else tf.cast(tensor, half)


def _counts_steps(op: tf.Operation) -> bool:
    handles = map(edit.handle_behind, op.inputs)
    return any(handle is not None and handle.name.rpartition("/")[2] == GLOBAL_STEP for handle in handles)


def _all_finite(tensors: list[tf.Tensor]) -> tf.Tensor:
    numbers = [tensor for tensor in tensors if tensor.dtype.is_floating or tensor.dtype.is_complex]
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in numbers]))


def _on_all_ranks(rewrite: Rewrite, finite: tf.Tensor) -> tf.Tensor:
    """Returns whether `finite` is true on every rank. The result comes from an allreduce or, if the plan uses no
    collectives, from server 0."""
    plan = rewrite.plan
    if plan.replicas == 1:
        return finite
    bad = 1.0 - tf.cast(finite, tf.float32)
    if uses_collectives(plan):
        from parallax_runner.collectives import ops as collectives

        (total,) = collectives.sum_over_ranks([bad], name="nonfinite")
        rewrite.sent.append(Sent(bad, 2 * (plan.replicas - 1) / plan.replicas, None))
        return tf.equal(total, 0.0)
    with tf.device(server_device(0)):
        accumulator = tf.ConditionalAccumulator(
            tf.float32, shape=[], reduction_type="SUM", shared_name=f"sum/{plan.fingerprint[:16]}/nonfinite"
        )
        rewrite.step_ops.append(accumulator.apply_grad(bad, local_step=tf.constant(tf.int64.max, tf.int64)))
    rewrite.sent.append(Sent(bad, 1, None))
    if not rewrite.is_chief:
        applied = receive(rewrite, tf.constant(True), name="applied")
        # Every step receives the signal, whether or not this rank has an op that depends on the signal.
        rewrite.step_ops.append(applied.op)
        return applied
    with tf.device(server_device(0)):
        applied = tf.equal(accumulator.take_grad(plan.replicas), 0.0)
    rewrite.step_ops += announce(rewrite, applied, name="applied")
    return applied


def _make_conditional(op: tf.Operation, condition: tf.Tensor) -> None:
    """Makes `op` run only if `condition` holds. Ops that wait for `op` run in either case."""
    waiting = list(op._control_outputs)
    values = [number for number, tensor in enumerate(op.inputs) if tensor.dtype != tf.resource]
    with op.graph.control_dependencies(None), tf.device(op.device or None):
        if values:
            index = values[-1]
            op._update_input(index, tf.raw_ops.Switch(data=op.inputs[index], pred=condition)[1])
        else:  # an op that takes only its variable, such as ResourceCountUpTo
            allowed = tf.identity(tf.raw_ops.Switch(data=tf.constant(True), pred=condition)[1])
            op._add_control_input(allowed.op)
        skipped = tf.identity(tf.raw_ops.Switch(data=tf.constant(False), pred=condition)[0])
        with tf.control_dependencies([op]):
            done = tf.constant(True)
        passed = tf.raw_ops.Merge(inputs=[skipped, tf.identity(done)])[0].op
    for other in waiting:
        edit.set_control_inputs(other, [passed, *(one for one in other.control_inputs if one != op)])
