"""Pass: aggregate dense gradients by allreduce."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.exchange.compression import half_dtype, rounded_means
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.sum_dtype import added, to_add
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite
from parallax_runner.rewrite.schedule.exchange_groups import apart
from parallax_runner.rewrite.schedule.ready_order import in_ready_order

# A bucket contains an eighth of all bytes, within these bounds. A bucket of this size is large enough to be worth an
# exchange, and small enough to be sent while the next bucket is computed.
BUCKETS = 8
LEAST_BYTES, MOST_BYTES = 200_000, 4_000_000
# Gradients that become ready in the last part of the computation are sent in one bucket, because no computation is left
# to overlap with the exchange. A remainder below REST_BYTES is sent with the bucket before it.
LAST_PART = 1 / 16
REST_BYTES = 16_000


@rewrite_pass(writes=["gradients", "replaced", "sent"])
def allreduce_dense_gradients(rewrite: Rewrite) -> None:
    """Replaces each dense gradient of an allreduced variable with its mean over ranks.

    Gradients that become ready in succession share an exchange (a bucket), which is sent while later gradients are
    computed. PyTorch's DistributedDataParallel does the same (Li and others 2020, section 3.2).
    """
    dense = [gradient for gradient in rewrite.gradients_by(Route.ALLREDUCE) if gradient.indices is None]
    for number, bucket in enumerate(bucket for together in apart(rewrite, dense) for bucket in _in_buckets(together)):
        _allreduce(rewrite, bucket, name="gradients" if number == 0 else f"gradients_{number}")


def _allreduce(rewrite: Rewrite, gradients: list[RankGradient], *, name: str) -> None:
    """Creates one fused exchange, and a second exchange for compressed gradients if the plan uses compression."""
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
    from parallax_runner.collectives import ops as collectives

    ring = 2 * (rewrite.plan.replicas - 1) / rewrite.plan.replicas
    addends = [to_add(value) for value in values]
    rewrite.sent += [Sent(addend, ring, variable) for addend, variable in zip(addends, variables, strict=True)]
    totals = collectives.sum_over_ranks(addends, name=name)
    means = [total / tf.cast(rewrite.plan.replicas, total.dtype) for total in totals]
    return [added(mean, value.dtype) for mean, value in zip(means, values, strict=True)]


def _in_buckets(gradients: list[RankGradient]) -> list[list[RankGradient]]:
    ready = [(waits_for, one, _size_bytes(one)) for waits_for, one in in_ready_order(gradients)]
    rest_bytes = sum(size_bytes for *_, size_bytes in ready)
    enough_bytes = min(max(rest_bytes / BUCKETS, LEAST_BYTES), MOST_BYTES)
    last_part = (1 - LAST_PART) * max((waits_for for waits_for, *_ in ready), default=0)
    buckets: list[list[RankGradient]] = []
    filled_bytes, may_leave = 0, True
    for waits_for, gradient, size_bytes in ready:
        if may_leave or filled_bytes + size_bytes > MOST_BYTES:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(gradient)
        filled_bytes, rest_bytes = filled_bytes + size_bytes, rest_bytes - size_bytes
        may_leave = filled_bytes >= enough_bytes and rest_bytes >= REST_BYTES and waits_for <= last_part
    return buckets


def _size_bytes(gradient: RankGradient) -> int:
    return (gradient.values.shape.num_elements() or 0) * gradient.values.dtype.size
