"""What is spread over the ranks, brought together: on all of them, or on the chief alone. All here are collectives."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Modulo, Rewrite, Shard
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.sum_dtype import added, to_add
from parallax_runner.rewrite.row_order import row_order

# Other ranks' steps go on while a variable travels to the chief: between two messages their collectives find room.
MESSAGE_BYTES = 16 << 20


def ids_of_all(rewrite: Rewrite, own: tf.Tensor, shard: Shard, *, name: str) -> tf.Tensor:
    """All ranks' ids, counted from the variable's first row; `own` are counted from this rank's own rows."""
    return concat(rewrite, shard.ids_at(own), shard.variable, name=name)


def whole_on_all(rewrite: Rewrite, own: tf.Tensor, shard: Shard, *, name: str) -> tf.Tensor:
    """All rows [rows, ...] of which each rank has its own."""
    assert shard.modulo is not None
    whole = tf.gather(concat(rewrite, own, shard.variable, name=name), _row_order(rewrite, shard.modulo))
    whole.set_shape([shard.modulo.rows, *own.shape[1:]])
    return whole


def concat(rewrite: Rewrite, own: tf.Tensor, variable: str, *, name: str) -> tf.Tensor:
    """The ranks' tensors, of a variable of the plan, one after the other."""
    from parallax_runner.rewrite.exchange import collectives

    own = tf.identity(own)  # counted only where this exchange is in the step
    rewrite.sent.append(Sent(own, rewrite.plan.workers - 1, variable))
    return collectives.concat_over_ranks(own, name=name)


def total(rewrite: Rewrite, own: tf.Tensor, variable: str, *, name: str) -> tf.Tensor:
    """The sum over ranks of what each has of a variable of the plan."""
    from parallax_runner.rewrite.exchange import collectives

    dtype, own = own.dtype, tf.identity(to_add(own))
    rewrite.sent.append(Sent(own, 2 * (rewrite.plan.workers - 1) / rewrite.plan.workers, variable))
    return added(collectives.sum_of_one(own, name=name), dtype)


def whole_on_chief(rewrite: Rewrite, own: tf.Tensor, shard: Shard, *, name: str) -> tf.Tensor:
    """All rows [rows, ...] on rank 0, none on the others."""
    from parallax_runner.rewrite.exchange import collectives

    modulo = shard.modulo
    assert modulo is not None
    row_bytes = max(1, own.dtype.size * (own.shape[1:].num_elements() or 1))
    rows_at_once = max(1, MESSAGE_BYTES // row_bytes)
    most = modulo.count(0)
    came: list[list[tf.Tensor]] = []
    for number, start in enumerate(range(0, most, rows_at_once)):
        with tf.control_dependencies([parts[0].op for parts in came[-1:]]):
            part = own[start : start + rows_at_once]
            counts = tf.one_hot(0, modulo.ranks, tf.shape(part)[0], 0, dtype=tf.int32)
            message, sizes = collectives.all_to_all(part, counts, name=f"{name}/{number}")
            came.append(tf.split(message, sizes, num=modulo.ranks))
    by_rank = [part for rank in range(modulo.ranks) for part in (parts[rank] for parts in came)]
    together = tf.concat(by_rank, axis=0)
    if modulo.rank != 0:
        return together
    whole = tf.gather(together, _row_order(rewrite, modulo))
    whole.set_shape([modulo.rows, *own.shape[1:]])
    return whole


def _row_order(rewrite: Rewrite, modulo: Modulo) -> tf.Tensor:
    """Where each row stands if the ranks' rows come one after the other; the same for all variables of as many rows."""
    if modulo.rows not in rewrite.row_orders:
        counts = [modulo.count(rank) for rank in range(modulo.ranks)]
        with tf.control_dependencies(None), tf.name_scope(f"row_order/{modulo.rows}/"):
            rewrite.row_orders[modulo.rows] = row_order(
                tf.constant(counts, tf.int32 if modulo.rows < 2**31 else tf.int64)
            )
    return rewrite.row_orders[modulo.rows]
