"""Sums, means and concatenations over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops as collectives
from parallax_runner.errors import CollectiveError
from parallax_runner.frontdoors.mpi_collectives.ranks import size

DTYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def allreduce(tensor: Any, average: bool = True) -> tf.Tensor | tf.IndexedSlices:
    """Returns the mean over ranks of a Tensor, a Variable or an IndexedSlices, or the sum with `average=False`.

    The shape and the dtype must be the same on all ranks. Otherwise, every rank gets an error that names the op.
    Collectives on different ranks are matched by the op's name, which is "allreduce", "allreduce_1" and so on in order
    of creation. The tensors' own names do not matter. The mean of integers is rounded down. For an IndexedSlices, the
    ranks' rows and indices are concatenated, and for the mean the rows are divided by the number of ranks. Rows with
    equal indices are not added up. No gradient flows through this op: to train on the mean of gradients, use
    `DistributedOptimizer`.

    Raises CollectiveError for a dtype that cannot be summed over ranks.
    """
    if isinstance(tensor, tf.IndexedSlices):
        values, indices = allgather(tensor.values), allgather(tensor.indices)
        return tf.IndexedSlices(_mean(values) if average else values, indices, dense_shape=tensor.dense_shape)
    own, tensor = _named(tensor)
    _check_dtype("allreduce", own, tensor)
    total = _kept_apart(collectives.sum_of_one(tensor, name="allreduce"))
    with tf.name_scope(f"{total.op.name}/"):
        total = tf.stop_gradient(total)
        return _mean(total) if average else total


def allgather(tensor: Any, name: str | None = None) -> tf.Tensor:
    """Returns the ranks' tensors, concatenated along the first dimension in rank order.

    The first dimensions can differ between ranks, and can be 0. The other dimensions and the dtype must be the same on
    all ranks. Otherwise, every rank gets an error that names the op. Collectives on different ranks are matched by the
    op's name. This name is `name` or, without `name`, "allgather", "allgather_1" and so on in order of creation. No
    gradient flows through this op.

    Raises CollectiveError for a scalar, or for a dtype that `allreduce` does not accept.
    """
    own, tensor = _named(tensor)
    _check_dtype("allgather", own, tensor)
    if tensor.shape.ndims == 0:
        raise CollectiveError(f"allgather of «{own}»: a scalar has no first dimension. Reshape the scalar to [1]")
    rows = _kept_apart(collectives.concat_over_ranks(tensor, name=name or "allgather"))
    with tf.name_scope(f"{rows.op.name}/"):
        return tf.stop_gradient(rows)


def _kept_apart(result: tf.Tensor) -> tf.Tensor:
    """Marks a collective so that TensorFlow does not merge it with another collective on the same tensor. On other
    ranks, the two collectives may have different tensors, and those ranks would then wait forever."""
    result.op._set_attr("_collective", tf.AttrValue(s=result.op.name.encode()))
    return result


def _named(tensor: Any) -> tuple[str, tf.Tensor]:
    """Returns a name for error messages, and the converted tensor. For a variable, the name is the variable's own
    name."""
    converted = tf.convert_to_tensor(tensor)
    named = tensor if hasattr(tensor, "name") else converted
    return named.name.removesuffix(":0"), converted


def _check_dtype(what: str, name: str, tensor: tf.Tensor) -> None:
    if tensor.dtype not in DTYPES:
        listed = ", ".join(dtype.name for dtype in DTYPES)
        raise CollectiveError(
            f"{what} of «{name}»: its dtype is {tensor.dtype.name}, expected one of {listed}. Cast the tensor first"
        )


def _mean(total: tf.Tensor) -> tf.Tensor:
    ranks = tf.cast(size(), total.dtype)
    return total // ranks if total.dtype.is_integer else total / ranks
