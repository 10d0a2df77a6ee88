"""Pass: merge variables that declare how ranks merge them, such as a count of examples («sum») or statistics («mean»).

At the end of a step, such a variable equals its old value plus the sum, or the mean, of the amounts that the ranks have
added. Each rank keeps its own copy of any other variable without a gradient, and checkpoints contain the chief's copy.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.devices import server_device
from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.every_route.weigh_by_share import if_any_example, weighed
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.signals import announce, receive
from parallax_runner.rewrite.exchange.sum_dtype import added, to_add
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.registry import uses_collectives


@rewrite_pass(reads=["train_op"], writes=["step_ops", "sent"])
def merge_declared_variables(rewrite: Rewrite) -> None:
    """Merges each untrained variable that declares an aggregation, after the step's last write to the variable."""
    if rewrite.plan.replicas == 1:
        return
    # The steps of all replicas of the worker are included, because one replica may push the gradients of the other
    # replicas, and therefore run their forward passes.
    step = edit.ancestors([op for one in rewrite.siblings for op in (one.train_op, *one.step_ops)])
    for variable in rewrite.single.merged:
        handle = rewrite.op(variable.name).outputs[0]
        writes = [op for op in handle.consumers() if op in step and edit.is_write(op)]
        if writes:
            with tf.name_scope(f"merge/{variable.name}/"):
                rewrite.step_ops.append(_merge(rewrite, variable, handle, writes))


def _merge(rewrite: Rewrite, variable: Variable, handle: tf.Tensor, writes: list[tf.Operation]) -> tf.Operation:
    dtype = handle.op.get_attr("dtype")
    with tf.control_dependencies(None):
        before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    for write in writes:
        edit.set_control_inputs(write, [*write.control_inputs, before.op])
    with tf.control_dependencies(writes):
        change = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) - before
    is_mean = variable.aggregation == "mean"
    change = weighed(change, rewrite.share) if is_mean else if_any_example(change, rewrite.share)
    total = _sum_over_ranks(rewrite, change, variable.name)
    if is_mean:
        total /= tf.cast(rewrite.plan.replicas, total.dtype)
    return tf.raw_ops.AssignVariableOp(resource=handle, value=before + tf.cast(total, dtype))


def _sum_over_ranks(rewrite: Rewrite, value: tf.Tensor, name: str) -> tf.Tensor:
    """Sums `value` over ranks by allreduce, or through server 0 if the plan uses no collectives."""
    plan = rewrite.plan
    if uses_collectives(plan):
        from parallax_runner.collectives import ops as collectives

        rewrite.sent.append(Sent(value, 2 * (plan.replicas - 1) / plan.replicas, None))
        (total,) = collectives.sum_over_ranks([value], name=f"merge/{name}")
        return total
    # TensorFlow's accumulators have no kernels for integers. In float64, sums of integers below 2**53 are exact.
    addend = tf.cast(value, tf.float64) if value.dtype.is_integer else to_add(value)
    with tf.device(server_device(0)):
        accumulator = tf.ConditionalAccumulator(
            addend.dtype, shape=value.shape, reduction_type="SUM", shared_name=f"merge/{plan.fingerprint[:16]}/{name}"
        )
        rewrite.step_ops.append(accumulator.apply_grad(addend, local_step=tf.constant(tf.int64.max, tf.int64)))
    rewrite.sent.append(Sent(addend, 2, None))
    if not rewrite.is_chief:
        return receive(rewrite, value, name=f"merge/{name}")
    with tf.device(server_device(0)):
        total = added(accumulator.take_grad(plan.replicas), value.dtype)
    rewrite.step_ops += announce(rewrite, total, name=f"merge/{name}")
    return total
