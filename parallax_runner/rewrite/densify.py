"""Pass: sparse gradients by allreduce, where steps touch nearly all rows.

Each rank spreads its merged rows over a tensor of the variable's shape, and ranks add these up. A number for each row
travels along: how many ranks touched it. By it the rows that no rank touched are left out again, and the update sees
the merged sparse gradient that it would see by any other route: an optimizer that leaves untouched rows alone, or a
norm, or a count of rows, cannot tell the difference.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.compression import half_dtype, rounded_means
from parallax_runner.rewrite.distributed_graph import Aggregate, Rewrite
from parallax_runner.rewrite.routes import travelling_by


def allreduce_sparse_gradients(rewrite: Rewrite) -> None:
    """Replaces each sparse gradient of a variable that has only sparse ones, and goes by allreduce, by the merged rows
    of all ranks, averaged if the plan says so; one fused exchange."""
    sparse = {variable.name for variable in rewrite.plan.variables if variable.gradient == "sparse"}
    gradients = [gradient for gradient in travelling_by(rewrite, Route.ALLREDUCE) if gradient.variables[0] in sparse]
    if not gradients:
        return
    spread, touched = [], []
    for gradient in gradients:
        with tf.name_scope(f"densify/{gradient.name}/"):
            rows, is_touched = _spread(gradient, _rows(rewrite, gradient))
            spread.append(rows)
            touched.append(is_touched)
    with tf.name_scope("densify/"):
        means, counts = _exchanged(rewrite, spread, touched)
    for gradient, mean, count in zip(gradients, means, counts, strict=True):
        assert gradient.indices is not None
        with tf.name_scope(f"densify/{gradient.name}/"):
            ids = tf.reshape(tf.where(count > 0), [-1])
            values = tf.gather(mean, ids)
            if not rewrite.plan.average_sparse:
                values *= tf.cast(rewrite.plan.replicas, values.dtype)
            indices = tf.cast(ids, gradient.indices.dtype)
        rewrite.replace_gradient(gradient, values, indices)


def _exchanged(
    rewrite: Rewrite, spread: list[tf.Tensor], touched: list[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Means of the rows over ranks, and counts; values that the plan compresses go by themselves, counts never."""
    from parallax_runner.rewrite import collectives

    halved = [number for number, rows in enumerate(spread) if half_dtype(rewrite, rows.dtype) is not None]
    exact = [number for number in range(len(spread)) if number not in halved]
    travelling = [*(spread[number] for number in exact), *touched]
    ring = 2 * (rewrite.plan.replicas - 1) / rewrite.plan.replicas
    rewrite.sent += [(tensor, ring) for tensor in travelling]
    sums = collectives.sum_over_ranks(travelling, name="densified")
    counts = sums[len(exact) :]
    means = dict(zip(exact, (total / tf.cast(rewrite.plan.replicas, total.dtype) for total in sums), strict=False))
    if halved:
        rounded = rounded_means(rewrite, [spread[number] for number in halved], "densified/rounded")
        means |= dict(zip(halved, rounded, strict=True))
    return [means[number] for number in range(len(spread))], counts


def _rows(rewrite: Rewrite, gradient: Aggregate) -> int:
    """As many as the largest of the variables has that this is the gradient of."""
    shapes = {variable.name: variable.shape for variable in rewrite.single.variables}
    return max(shapes[name][0] for name in gradient.variables)


def _spread(gradient: Aggregate, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """values [u, ...] of distinct ids [u] to a tensor [rows, ...], and [rows] with 1 where a row was touched."""
    values, indices = gradient.values, gradient.indices
    spread = tf.math.unsorted_segment_sum(values, indices, rows)
    spread.set_shape([rows, *values.shape[1:]])
    touched = tf.math.unsorted_segment_sum(tf.ones_like(indices, values.dtype), indices, rows)
    touched.set_shape([rows])
    return spread, touched
