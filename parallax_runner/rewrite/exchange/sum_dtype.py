"""In which dtype values are added up.

Neither TensorFlow's accumulators nor Horovod know bfloat16, and a sum of many addends would lose most of its 8 bits.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

WIDER = {tf.bfloat16: tf.float32}


def adding_dtype(dtype: tf.DType) -> tf.DType:
    """What values of `dtype` are added up as."""
    return WIDER.get(dtype, dtype)


def to_add(tensor: tf.Tensor) -> tf.Tensor:
    """The same values in the dtype in which they are added up."""
    wider = adding_dtype(tensor.dtype)
    return tensor if wider == tensor.dtype else tf.cast(tensor, wider)


def added(total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """A sum, or a mean, in the dtype of its addends."""
    return total if total.dtype == dtype else tf.cast(total, dtype)
