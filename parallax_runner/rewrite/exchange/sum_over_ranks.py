"""Sums a tensor over the replicas, outside of the exchange of gradients."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.signals import announce, receive
from parallax_runner.rewrite.exchange.sum_dtype import added, to_add
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.registry import uses_collectives


def sum_over_ranks(rewrite: Rewrite, value: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the sum of `value` over the replicas, by allreduce, or through server 0 if the plan uses no collectives.

    `name` is the same on all ranks, and no other sum has it."""
    plan = rewrite.plan
    if uses_collectives(plan):
        from parallax_runner.collectives import ops as collectives

        rewrite.sent.append(Sent(value, 2 * (plan.replicas - 1) / plan.replicas, None))
        (total,) = collectives.sum_over_ranks([value], name=name)
        return total
    # TensorFlow's accumulators have no kernels for integers. In float64, sums of integers below 2**53 are exact.
    addend = tf.cast(value, tf.float64) if value.dtype.is_integer else to_add(value)
    with tf.device(server_device(0)):
        accumulator = tf.ConditionalAccumulator(
            addend.dtype, shape=value.shape, reduction_type="SUM", shared_name=f"sum/{plan.fingerprint[:16]}/{name}"
        )
        rewrite.step_ops.append(accumulator.apply_grad(addend, local_step=tf.constant(tf.int64.max, tf.int64)))
    rewrite.sent.append(Sent(addend, 2, None))
    if not rewrite.is_chief:
        return receive(rewrite, value, name=name)
    with tf.device(server_device(0)):
        total = added(accumulator.take_grad(plan.replicas), value.dtype)
    rewrite.step_ops += announce(rewrite, total, name=name)
    return total
