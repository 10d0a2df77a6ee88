"""Pass: merge variables that declare how ranks merge them, such as a count of examples («sum») or statistics («mean»).

At the end of a step, such a variable equals its old value plus the sum, or the mean, of the amounts that the ranks have
added. Each rank keeps its own copy of any other variable without a gradient, and checkpoints contain the chief's copy.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.every_route.weigh_by_share import if_any_example, weighed
from parallax_runner.rewrite.exchange.sum_over_ranks import sum_over_ranks
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite


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
    total = sum_over_ranks(rewrite, change, f"merge/{variable.name}")
    if is_mean:
        total /= tf.cast(rewrite.plan.replicas, total.dtype)
    return tf.raw_ops.AssignVariableOp(resource=handle, value=before + tf.cast(total, dtype))
