"""Makes all ranks push gradients of variables on servers. The server that owns the rows sums the gradients."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import FULL_ROWS, Ids, Rows
from parallax_runner.analysis.update_region.row_list import GradientList
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.conditional import only_if
from parallax_runner.rewrite.exchange.compression import compress, decompress
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.sum_dtype import added, adding_dtype, to_add
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue
from parallax_runner.routes.ps.casts import before_widening
from parallax_runner.routes.ps.on_servers import OnServers, on_servers, split_by_owner
from parallax_runner.routes.ps.state import PsState


@rewrite_pass(
    reads=["gradients", "placements", "coordination", "PsState.pushes"], writes=["aggregates", "step_ops", "sent"]
)
def accumulate_gradients(rewrite: Rewrite) -> None:
    """Makes all ranks push gradients of variables on the ps route, if every step waits for all ranks. The passes that
    build other steps push gradients themselves."""
    if rewrite.plan.options.waits_for_all:
        rewrite.aggregates |= accumulate_on_servers(rewrite)


def accumulate_on_servers(rewrite: Rewrite) -> dict[str, ShardedValue]:
    """Adds pushes to the step. Returns the aggregates that the chief takes from the servers, by tensor name.

    A push contains the rank's merged rows for one shard, with their positions in the shard. The aggregate of a sparse
    gradient has distinct ascending ids again. Abadi et al. 2016, section 4.4, describe the accumulator scheme. An
    accumulator's MEAN divides the sum of a row by the number of ranks that touched the row, so this function takes the
    SUM and divides it by the total number of contributors.
    """
    taken: dict[str, ShardedValue] = {}
    for gradient in rewrite.gradients_by(Route.PS):
        placement = on_servers(rewrite, gradient.variables[0])
        if gradient.indices is None:
            taken[gradient.values.name] = _dense(rewrite, gradient, placement)
        else:
            values, ids = _sparse(rewrite, gradient, placement)
            taken[gradient.values.name], taken[gradient.indices.name] = values, ids
    return taken


def _dense(rewrite: Rewrite, gradient: RankGradient, placement: OnServers) -> ShardedValue:
    pushed = rewrite.of_route(PsState).pushes.get(gradient.name, (gradient.values, None))
    narrow = None if pushed is None else before_widening(rewrite, pushed[0])
    means = []
    for number, shard in enumerate(placement.shards):
        name = f"{gradient.name}/shard_{number}" if placement.is_cut else gradient.name
        rows = shard.take(narrow) if narrow is not None and placement.is_cut else narrow
        with tf.device(shard.device), tf.name_scope(f"accumulate/{name}/"):
            means.append(_dense_mean(rewrite, rows, shard, placement.variable, gradient.values.dtype, name=name))
    return ShardedValue(tuple(means), placement, FULL_ROWS)


def _dense_mean(
    rewrite: Rewrite, rows: tf.Tensor | None, shard: Shard, variable: str, dtype: tf.DType, *, name: str
) -> tf.Tensor:
    """Returns the mean over ranks of a dense gradient's rows for one shard, in `dtype`. This rank pushes `rows`, or
    pushes nothing if `rows` is None."""
    shape = shard.handle.op.get_attr("shape")
    accumulator = tf.ConditionalAccumulator(
        adding_dtype(dtype), shape=shape, reduction_type="SUM", shared_name=f"sum/{name}"
    )
    if rows is not None:
        with tf.device(rewrite.worker_device):
            travelling = compress(rewrite, rows)
        wide = tf.cast(decompress(rewrite, travelling, rows.dtype), dtype)
        rewrite.step_ops.append(accumulator.apply_grad(to_add(wide), local_step=_never_stale()))
        rewrite.sent.append(Sent(travelling, 1, variable))
    mean = added(_divide(accumulator.take_grad(_pushes(rewrite)), rewrite), dtype)
    mean.set_shape(shape)
    return mean


def _sparse(rewrite: Rewrite, gradient: RankGradient, placement: OnServers) -> tuple[ShardedValue, ShardedValue]:
    assert gradient.indices is not None
    values, ids = [], []
    pushed = rewrite.of_route(PsState).pushes.get(gradient.name, (gradient.values, gradient.indices))
    with tf.name_scope(f"split/{gradient.name}/"):
        parts = split_by_owner(*(pushed or (gradient.values, gradient.indices)), len(placement.shards))
    for number, (shard, (rows, part)) in enumerate(zip(placement.shards, parts, strict=True)):
        local_ids = tf.cast(shard.places_of(part), tf.int64)
        travelling = compress(rewrite, rows)
        with tf.device(shard.device), tf.name_scope(f"accumulate/{gradient.name}/shard_{number}/"):
            accumulator = tf.SparseConditionalAccumulator(
                adding_dtype(rows.dtype),
                shape=[None, *rows.shape[1:]],
                reduction_type="SUM",
                shared_name=f"sum/{gradient.name}/shard_{number}",
            )
            if pushed is not None:
                wide = decompress(rewrite, travelling, rows.dtype)
                rewrite.step_ops.append(accumulator.apply_grad(local_ids, to_add(wide), local_step=_never_stale()))
                rewrite.sent += [Sent(each, 1, placement.variable) for each in (travelling, local_ids)]
            total = accumulator.take_indexed_slices_grad(_pushes(rewrite))
            mean = _divide(total.values, rewrite) if rewrite.plan.options.average_sparse else total.values
            mean = added(mean, rows.dtype)
            mean.set_shape(rows.shape)
            values.append(mean)
            places = tf.cast(total.indices, gradient.indices.dtype)
            places.set_shape([None])
            ids.append(places)
    rows_of = GradientList(gradient.name)
    return (
        ShardedValue(tuple(values), placement, Rows(rows_of)),
        ShardedValue(tuple(ids), placement, Ids(rows_of)),
    )


def _never_stale() -> tf.Tensor:
    """Returns a step number that no accumulator treats as stale. Accumulators drop stale pushes, but synchronous steps
    have no stale pushes."""
    return tf.constant(tf.int64.max, tf.int64)


def _pushes(rewrite: Rewrite) -> tf.Tensor | int:
    """Returns the number of pushes to wait for. If the leader is chosen anew in each step, only the leader waits."""
    if rewrite.coordination.leads is None:
        return rewrite.plan.pushes
    return only_if(rewrite.coordination.leads, tf.constant(rewrite.plan.pushes))


def _divide(total: tf.Tensor, rewrite: Rewrite) -> tf.Tensor:
    return total / tf.cast(rewrite.plan.contributors, total.dtype)
