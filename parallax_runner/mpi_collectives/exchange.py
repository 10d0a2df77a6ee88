"""Sums, means and concatenations over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CollectiveError
from parallax_runner.mpi_collectives.ranks import size
from parallax_runner.rewrite import collectives

DTYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def allreduce(tensor: Any, average: bool = True) -> tf.Tensor | tf.IndexedSlices:
    """The mean over ranks of a Tensor, a Variable or an IndexedSlices; the sum with `average=False`.

    Shape and dtype must be the same on all ranks; where they are not, every rank gets an error that names the tensor.
    The mean of integers is rounded down. Of an IndexedSlices the ranks' rows and indices stand one after the other, the
    rows divided by the number of ranks: rows of equal indices are not added up. No gradient flows through: to train
    on the mean of gradients, use `DistributedOptimizer`.

    Raises CollectiveError for a dtype that ranks cannot add.
    """
    if isinstance(tensor, tf.IndexedSlices):
        values, indices = allgather(tensor.values), allgather(tensor.indices)
        return tf.IndexedSlices(_mean(values) if average else values, indices, dense_shape=tensor.dense_shape)
    name, tensor = _named(tensor)
    _check_dtype("allreduce", name, tensor)
    with tf.name_scope("allreduce/"):
        total = tf.stop_gradient(collectives.sum_of_one(tensor, name=name))
        return _mean(total) if average else total


def allgather(tensor: Any, name: str | None = None) -> tf.Tensor:
    """The ranks' tensors one after the other along the first dimension, in rank order.

    First dimensions may differ, and be 0; the others and the dtype must be the same on all ranks, or every rank gets
    an error that names the tensor. Ranks match by `name`, or else by the tensor's own. No gradient flows through.

    Raises CollectiveError for a scalar, or a dtype other than those of `allreduce`.
    """
    own, tensor = _named(tensor)
    _check_dtype("allgather", own, tensor)
    if tensor.shape.ndims == 0:
        raise CollectiveError(f"allgather of «{own}»: it is a scalar, and has no first dimension: reshape it to [1]")
    with tf.name_scope("allgather/"):
        return tf.stop_gradient(collectives.concat_over_ranks(tensor, name=name or own))


def _named(tensor: Any) -> tuple[str, tf.Tensor]:
    """The name to match by, a variable's own for a variable, and the tensor."""
    converted = tf.convert_to_tensor(tensor)
    named = tensor if hasattr(tensor, "name") else converted
    return named.name.removesuffix(":0").replace(":", "_"), converted


def _check_dtype(what: str, name: str, tensor: tf.Tensor) -> None:
    if tensor.dtype not in DTYPES:
        listed = ", ".join(dtype.name for dtype in DTYPES)
        raise CollectiveError(
            f"{what} of «{name}»: its dtype is {tensor.dtype.name}, expected one of {listed}: cast it first"
        )


def _mean(total: tf.Tensor) -> tf.Tensor:
    ranks = tf.cast(size(), total.dtype)
    return total // ranks if total.dtype.is_integer else total / ranks
