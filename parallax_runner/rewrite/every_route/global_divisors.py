"""Pass: divide the losses of a rank by the divisors of all ranks together (docs/design/0087)."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import Divisor, DivisorKind
from parallax_runner.rewrite.every_route.weigh_by_share import if_any_example
from parallax_runner.rewrite.exchange.sum_over_ranks import sum_over_ranks
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite


@rewrite_pass(writes=["sent", "step_ops"])
def divide_by_all_ranks(rewrite: Rewrite) -> None:
    """Gives each marked divisor the value with which the mean over the replicas is the sum of all ranks, divided by the
    divisor of all ranks."""
    if not rewrite.is_mean_over_all:
        return
    for number, divisor in enumerate(rewrite.single.decided_divisors):
        own = rewrite.tensor(divisor.tensor)
        readers = set(own.consumers())
        with tf.name_scope(f"divisor_{number}/"), tf.control_dependencies(None):
            of_replica = _of_replica(rewrite, divisor, own, name=f"divisor_{number}")
        edit.reconnect(own, of_replica, where=readers.__contains__)


def _of_replica(rewrite: Rewrite, divisor: Divisor, own: tf.Tensor, *, name: str) -> tf.Tensor:
    """Returns the value of a divisor for this replica: that of all ranks, divided by the number of replicas, times the
    share of this replica. A replica without examples divides by a value that is not 0."""
    is_counted = divisor.kind == DivisorKind.COUNT
    total = sum_over_ranks(rewrite, if_any_example(own, rewrite.share), name) if is_counted else own
    mean = total / tf.cast(rewrite.plan.replicas, total.dtype)
    if rewrite.share is None:
        return mean
    share = tf.cast(rewrite.share, mean.dtype)
    return tf.where(share > 0, mean * share, tf.ones_like(mean))
