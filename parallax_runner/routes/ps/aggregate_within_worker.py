"""Pass: sum the gradients of a worker's replicas, so that each worker pushes each gradient only once."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.every_route.merge import merge
from parallax_runner.rewrite.exchange.sum_dtype import added, to_add
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite
from parallax_runner.routes.ps.state import PsState


@rewrite_pass(reads=["gradients"], writes=["PsState.pushes"])
def aggregate_within_worker(rewrite: Rewrite) -> None:
    """Sums the gradients that the replicas of this worker would push. The first replica pushes the sum for all of
    them."""
    # Runs only for the last replica, when the gradients of all replicas are merged.
    if not rewrite.plan.aggregates_locally or rewrite is not rewrite.siblings[-1]:
        return
    first, *others = rewrite.siblings
    for same in zip(*[each.gradients_by(Route.PS) for each in rewrite.siblings], strict=True):
        with tf.device(first.worker_device), tf.name_scope(f"within_worker/{same[0].name}/"):
            first.of_route(PsState).pushes[same[0].name] = _total(same)
        for other in others:
            other.of_route(PsState).pushes[same[0].name] = None


def _total(gradients: tuple[RankGradient, ...]) -> tuple[tf.Tensor, tf.Tensor | None]:
    values = [gradient.values for gradient in gradients]
    indices = [gradient.indices for gradient in gradients if gradient.indices is not None]
    if not indices:
        return added(tf.add_n([to_add(value) for value in values]), values[0].dtype), None
    return merge(tf.concat(values, axis=0), tf.concat(indices, axis=0))
