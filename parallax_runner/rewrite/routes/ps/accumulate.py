"""Pass: gradients of variables on servers are pushed by all ranks and summed by the server that owns the rows."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.conditional import only_if
from parallax_runner.rewrite.distributed_graph import Aggregate, Rewrite, Shard
from parallax_runner.rewrite.exchange.compression import compress, decompress
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.sum_dtype import added, adding_dtype, to_add
from parallax_runner.rewrite.routes.ps.casts import before_widening
from parallax_runner.rewrite.routes.ps.shards import partition_ids
from parallax_runner.rewrite.travelling import travelling_by
from parallax_runner.rewrite.update_region.sharded_value import FULL, Kind, ShardedValue


def accumulate_on_servers(rewrite: Rewrite) -> dict[str, ShardedValue]:
    """Adds pushes to the step, and returns by tensor name the aggregates that the chief takes from the servers.

    A push holds the rank's merged rows of one shard, under their places in the shard. The aggregate of a
    sparse gradient has ascending distinct ids again (Abadi et al. 2016, section 4.4, for the accumulator scheme;
    its MEAN divides by how many ranks touched a row, so sums are taken and divided here).
    """
    taken: dict[str, ShardedValue] = {}
    for gradient in travelling_by(rewrite, Route.PS):
        shards = rewrite.shards_of(gradient.variables[0])
        if gradient.indices is None:
            taken[gradient.values.name] = _dense(rewrite, gradient, shards)
        else:
            values, ids = _sparse(rewrite, gradient, shards)
            taken[gradient.values.name], taken[gradient.indices.name] = values, ids
    return taken


def _dense(rewrite: Rewrite, gradient: Aggregate, shards: list[Shard]) -> ShardedValue:
    (shard,) = shards
    shape = shard.handle.op.get_attr("shape")
    with tf.device(shard.device), tf.name_scope(f"accumulate/{gradient.name}/"):
        dtype = gradient.values.dtype
        accumulator = tf.ConditionalAccumulator(
            adding_dtype(dtype), shape=shape, reduction_type="SUM", shared_name=f"sum/{gradient.name}"
        )
        pushed = rewrite.pushes.get(gradient.name, (gradient.values, None))
        if pushed is not None:
            narrow = before_widening(rewrite, pushed[0])
            with tf.device(rewrite.worker_device):
                travelling = compress(rewrite, narrow)
            wide = tf.cast(decompress(rewrite, travelling, narrow.dtype), dtype)
            rewrite.step_ops.append(accumulator.apply_grad(to_add(wide), local_step=_never_stale()))
            rewrite.sent.append(Sent(travelling, 1, shard.variable))
        mean = added(_divide(accumulator.take_grad(_pushes(rewrite)), rewrite), dtype)
        mean.set_shape(shape)
    return ShardedValue(pieces=(mean,), shards=tuple(shards), kind=FULL)


def _sparse(rewrite: Rewrite, gradient: Aggregate, shards: list[Shard]) -> tuple[ShardedValue, ShardedValue]:
    assert gradient.indices is not None
    values, ids = [], []
    pushed = rewrite.pushes.get(gradient.name, (gradient.values, gradient.indices))
    with tf.name_scope(f"split/{gradient.name}/"):
        parts = split_by_owner(*(pushed or (gradient.values, gradient.indices)), shards)
    for number, (shard, (rows, part)) in enumerate(zip(shards, parts, strict=True)):
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
                rewrite.sent += [Sent(each, 1, shard.variable) for each in (travelling, local_ids)]
            total = accumulator.take_indexed_slices_grad(_pushes(rewrite))
            mean = _divide(total.values, rewrite) if rewrite.plan.average_sparse else total.values
            mean = added(mean, rows.dtype)
            mean.set_shape(rows.shape)
            values.append(mean)
            ids.append(tf.cast(total.indices, gradient.indices.dtype))
    return (
        ShardedValue(pieces=tuple(values), shards=tuple(shards), kind=Kind("rows", gradient.name)),
        ShardedValue(pieces=tuple(ids), shards=tuple(shards), kind=Kind("ids", gradient.name)),
    )


def _never_stale() -> tf.Tensor:
    """A push with a step older than the accumulator's is dropped; in a synchronous step none is old."""
    return tf.constant(tf.int64.max, tf.int64)


def _pushes(rewrite: Rewrite) -> tf.Tensor | int:
    """How many pushes are waited for; only by the one who leads, where that is not known before."""
    if rewrite.leads is None:
        return rewrite.plan.pushes
    return only_if(rewrite.leads, tf.constant(rewrite.plan.pushes))


def _divide(total: tf.Tensor, rewrite: Rewrite) -> tf.Tensor:
    return total / tf.cast(rewrite.plan.contributors, total.dtype)


def split_by_owner(values: tf.Tensor, indices: tf.Tensor, shards: list[Shard]) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Rows and ids of each shard, in the order in which they come."""
    if len(shards) == 1:
        return [(values, indices)]
    parts, positions = partition_ids(indices, shards)
    return [(tf.gather(values, position), part) for part, position in zip(parts, positions, strict=True)]
