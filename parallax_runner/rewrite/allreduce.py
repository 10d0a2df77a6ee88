"""Pass: dense gradients by allreduce."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.appearance import in_order_of_appearance
from parallax_runner.rewrite.compression import half_dtype, rounded_means
from parallax_runner.rewrite.distributed_graph import Aggregate, Rewrite
from parallax_runner.rewrite.routes import travelling_by
from parallax_runner.rewrite.sent import Sent

# Large enough to pay for an exchange of its own, small enough to leave while the next one is computed.
BUCKET_BYTES = 4_000_000


def allreduce_dense_gradients(rewrite: Rewrite) -> None:
    """Replaces each dense gradient of an allreduced variable by its mean over ranks.

    Gradients that appear one after the other share an exchange, up to `BUCKET_BYTES`; a bucket travels while the later
    ones are computed (as in PyTorch's DistributedDataParallel, Li and others 2020, section 3.2).
    """
    gradients = [gradient for gradient in travelling_by(rewrite, Route.ALLREDUCE) if gradient.indices is None]
    for number, bucket in enumerate(_in_buckets(gradients)):
        _allreduce(rewrite, bucket, name="gradients" if number == 0 else f"gradients_{number}")


def _allreduce(rewrite: Rewrite, gradients: list[Aggregate], *, name: str) -> None:
    """One fused exchange, and one for what is rounded where the plan compresses."""
    rounded = [gradient for gradient in gradients if half_dtype(rewrite, gradient.values.dtype) is not None]
    exact = [gradient for gradient in gradients if gradient not in rounded]
    for members, means_of, suffix in ((exact, _exact_means, ""), (rounded, rounded_means, "/rounded")):
        if not members:
            continue
        with tf.name_scope("allreduce/"):
            variables = [gradient.variables[0] for gradient in members]
            means = means_of(rewrite, [gradient.values for gradient in members], variables, name + suffix)
        for gradient, mean in zip(members, means, strict=True):
            rewrite.replace_gradient(gradient, mean, None)


def _exact_means(rewrite: Rewrite, values: Sequence[tf.Tensor], variables: Sequence[str], name: str) -> list[tf.Tensor]:
    from parallax_runner.rewrite import collectives

    ring = 2 * (rewrite.plan.replicas - 1) / rewrite.plan.replicas
    rewrite.sent += [Sent(value, ring, variable) for value, variable in zip(values, variables, strict=True)]
    return [
        total / tf.cast(rewrite.plan.replicas, total.dtype) for total in collectives.sum_over_ranks(values, name=name)
    ]


def _in_buckets(gradients: list[Aggregate]) -> list[list[Aggregate]]:
    buckets: list[list[Aggregate]] = []
    filled_bytes = 0
    for _, gradient in in_order_of_appearance(gradients):
        size_bytes = (gradient.values.shape.num_elements() or 0) * gradient.values.dtype.size
        if not buckets or filled_bytes + size_bytes > BUCKET_BYTES:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(gradient)
        filled_bytes += size_bytes
    return buckets
