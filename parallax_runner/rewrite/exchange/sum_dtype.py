"""Chooses the dtype for summing values.

Neither TensorFlow's accumulators nor the backends support bfloat16, and a bfloat16 sum of many addends would lose most
of its 8 bits of precision.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

WIDER = {tf.bfloat16: tf.float32}


def adding_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype for summing values of `dtype`."""
    return WIDER.get(dtype, dtype)


def to_add(tensor: tf.Tensor) -> tf.Tensor:
    """Casts a tensor to the dtype in which it is summed."""
    wider = adding_dtype(tensor.dtype)
    return tensor if wider == tensor.dtype else tf.cast(tensor, wider)


def added(total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts a sum or a mean back to the dtype of its addends."""
    return total if total.dtype == dtype else tf.cast(total, dtype)
