"""Pass: aggregate sparse gradients by allreduce, if the plan chooses this route. The route pays off if steps touch
nearly all rows.

Each rank scatters its merged rows into a tensor of the variable's shape, and the ranks sum these tensors. The ranks
also count how many of them touched each row, so rows that no rank touched can be removed again. The update sees the
same merged sparse gradient as on any other route. Therefore, a norm, a count of rows, or an optimizer that skips
untouched rows gives the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.exchange.compression import half_dtype, rounded_means
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.sum_dtype import added, to_add
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite
from parallax_runner.rewrite.schedule.exchange_groups import apart


@rewrite_pass(writes=["gradients", "replaced", "sent"])
def allreduce_sparse_gradients(rewrite: Rewrite) -> None:
    """Replaces each sparse gradient on the allreduce route with the merged rows of all ranks. These rows are averaged
    if the plan averages sparse gradients.

    Only variables whose gradients are all sparse are affected. All gradients that may share an exchange are fused.
    """
    sparse = {variable.name for variable in rewrite.plan.variables if variable.gradient == "sparse"}
    gradients = [gradient for gradient in rewrite.gradients_by(Route.ALLREDUCE) if gradient.variables[0] in sparse]
    for number, together in enumerate(apart(rewrite, gradients)):
        parts = [Rows(one.variables[0], one.values, _ids(one), _rows(rewrite, one)) for one in together]
        name = "densified" if number == 0 else f"densified_{number}"
        for gradient, aggregate in zip(together, aggregate_spread(rewrite, parts, name=name), strict=True):
            rewrite.replace_gradient(gradient, aggregate.values, aggregate.ids)


@dataclass(frozen=True)
class Rows:
    """Rows of `variable`: values [u, ...] for distinct ascending ids [u] below `rows`."""

    variable: str
    values: tf.Tensor
    ids: tf.Tensor
    rows: int


def aggregate_spread(rewrite: Rewrite, parts: Sequence[Rows], *, name: str) -> list[Rows]:
    """Aggregates several sets of rows over all ranks in one fused exchange. Averages the rows if the plan averages
    sparse gradients."""
    if not parts:
        return []
    with tf.name_scope(f"{name}/spread/"):
        spread, touched = zip(*map(_spread, parts), strict=True)
    with tf.name_scope(f"{name}/"):
        means, counts = _exchanged(rewrite, spread, touched, [part.variable for part in parts], name)
        return [_touched_rows(rewrite, *each) for each in zip(parts, means, counts, strict=True)]


def _touched_rows(rewrite: Rewrite, part: Rows, mean: tf.Tensor, count: tf.Tensor) -> Rows:
    ids = tf.reshape(tf.where(count > 0), [-1])
    values = tf.gather(mean, ids)
    if not rewrite.plan.options.average_sparse:
        values *= tf.cast(rewrite.plan.replicas, values.dtype)
    return Rows(part.variable, added(values, part.values.dtype), tf.cast(ids, part.ids.dtype), part.rows)


def _exchanged(
    rewrite: Rewrite, spread: Sequence[tf.Tensor], touched: Sequence[tf.Tensor], variables: Sequence[str], name: str
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the means of rows over ranks, and the number of ranks that touched each row. Compressed values are sent
    in a separate exchange. The counts of ranks are never compressed."""
    from parallax_runner.collectives import ops as collectives

    halved = [number for number, rows in enumerate(spread) if half_dtype(rewrite, rows.dtype) is not None]
    exact = [number for number in range(len(spread)) if number not in halved]
    travelling = [*(spread[number] for number in exact), *touched]
    ring = 2 * (rewrite.plan.replicas - 1) / rewrite.plan.replicas
    travelling_for = [*(variables[number] for number in exact), *variables]
    rewrite.sent += [Sent(each, ring, variable) for each, variable in zip(travelling, travelling_for, strict=True)]
    sums = collectives.sum_over_ranks(travelling, name=name)
    counts = sums[len(exact) :]
    means = dict(zip(exact, (total / tf.cast(rewrite.plan.replicas, total.dtype) for total in sums), strict=False))
    if halved:
        members, of = [spread[number] for number in halved], [variables[number] for number in halved]
        rounded = rounded_means(rewrite, members, of, f"{name}/rounded")
        means |= dict(zip(halved, rounded, strict=True))
    return [means[number] for number in range(len(spread))], counts


def _ids(gradient: RankGradient) -> tf.Tensor:
    assert gradient.indices is not None
    return gradient.indices


def _rows(rewrite: Rewrite, gradient: RankGradient) -> int:
    """Returns the number of rows of the largest variable that has this gradient."""
    shapes = {variable.name: variable.shape for variable in rewrite.single.variables}
    return max(shapes[name][0] for name in gradient.variables)


def _spread(part: Rows) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a tensor [rows, ...] with the values in the touched rows and zeros elsewhere, and a tensor [rows] with 1
    for each touched row and 0 for each other row."""
    values = to_add(part.values)
    spread = tf.math.unsorted_segment_sum(values, part.ids, part.rows)
    spread.set_shape([part.rows, *part.values.shape[1:]])
    touched = tf.math.unsorted_segment_sum(tf.ones_like(part.ids, values.dtype), part.ids, part.rows)
    touched.set_shape([part.rows])
    return spread, touched
