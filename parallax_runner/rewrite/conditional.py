"""Tensors that exist on a condition, as `tf.cond` of TensorFlow 1 makes them: what depends on them runs only then."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit


def only_if(condition: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """The tensor where `condition` (scalar, bool) holds; elsewhere dead, with all that depends on it."""
    return tf.identity(tf.raw_ops.Switch(data=tensor, pred=condition)[1])


def or_zero(condition: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """`number` (of a known shape) where `condition` holds, and 0 where it is dead."""
    zero = tf.zeros(number.shape, number.dtype)
    otherwise = tf.identity(tf.raw_ops.Switch(data=zero, pred=condition)[0])
    return tf.raw_ops.Merge(inputs=[otherwise, only_if(condition, number)])[0]


def depends_on(condition: tf.Tensor, tensor: tf.Tensor) -> bool:
    """Whether the tensor is dead where `condition` does not hold."""
    return any(op.type == "Switch" and op.inputs[1].name == condition.name for op in edit.ancestors([tensor.op]))
