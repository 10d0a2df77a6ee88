"""Pass: dense gradients by allreduce."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.distributed_graph import Rewrite
from parallax_runner.rewrite.routes import travelling_by


def allreduce_dense_gradients(rewrite: Rewrite) -> None:
    """Replaces each dense gradient of an allreduced variable by its mean over ranks; one fused exchange."""
    gradients = [gradient for gradient in travelling_by(rewrite, Route.ALLREDUCE) if gradient.indices is None]
    if not gradients:
        return
    from parallax_runner.rewrite import collectives

    with tf.name_scope("allreduce/"):
        sums = collectives.sum_over_ranks([gradient.values for gradient in gradients], name="gradients")
    ring = 2 * (rewrite.plan.replicas - 1) / rewrite.plan.replicas
    for gradient, total in zip(gradients, sums, strict=True):
        rewrite.sent.append((gradient.values, ring))
        with tf.name_scope(f"allreduce/{gradient.name}/"):
            mean = total / tf.cast(rewrite.plan.replicas, total.dtype)
        rewrite.replace_gradient(gradient, mean, None)
