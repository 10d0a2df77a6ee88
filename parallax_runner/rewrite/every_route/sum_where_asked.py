"""Pass: sum over the replicas what the model asks to sum, such as the statistics of a synchronized batch normalization
(docs/design/0088)."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import RankSum
from parallax_runner.rewrite.every_route.weigh_by_share import if_any_example, weighed
from parallax_runner.rewrite.exchange.sum_over_ranks import sum_over_ranks
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite


@rewrite_pass(writes=["sent", "step_ops"])
def sum_where_asked(rewrite: Rewrite) -> None:
    """Replaces the value of each mark by the sum over all replicas."""
    if not rewrite.is_mean_over_all:
        return
    for number, mark in enumerate(rewrite.single.rank_sums):
        own = rewrite.tensor(mark.tensor)
        readers = set(own.consumers())
        with tf.name_scope(f"rank_sum_{number}/"), tf.control_dependencies(None):
            total = _sum(rewrite, mark, own, name=f"rank_sum_{number}")
        edit.reconnect(own, total, where=readers.__contains__)


def _sum(rewrite: Rewrite, mark: RankSum, own: tf.Tensor, *, name: str) -> tf.Tensor:
    """Returns the sum of values over the replicas with examples. The gradients of replicas are weighed by their shares,
    and the sum is divided by this replica's share, because the share multiplies it again later."""
    if not mark.is_gradient:
        return sum_over_ranks(rewrite, if_any_example(own, rewrite.share), name)
    total = sum_over_ranks(rewrite, weighed(own, rewrite.share), name)
    return total if rewrite.share is None else tf.math.divide_no_nan(total, tf.cast(rewrite.share, total.dtype))
