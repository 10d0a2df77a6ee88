"""Makes tensors conditional, like TensorFlow 1's `tf.cond`: ops that depend on them run only if the condition holds."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit


def only_if(condition: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor if `condition` (scalar, bool) holds. Otherwise, the tensor and all ops that depend on it are
    dead."""
    return tf.identity(tf.raw_ops.Switch(data=tensor, pred=condition)[1])


def or_zero(condition: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns `number` if `condition` holds, and zeros otherwise. `number` must have a static shape."""
    zero = tf.zeros(number.shape, number.dtype)
    otherwise = tf.identity(tf.raw_ops.Switch(data=zero, pred=condition)[0])
    return tf.raw_ops.Merge(inputs=[otherwise, only_if(condition, number)])[0]


def depends_on(condition: tf.Tensor, tensor: tf.Tensor) -> bool:
    """Returns whether the tensor is dead if `condition` does not hold."""
    return any(op.type == "Switch" and op.inputs[1].name == condition.name for op in edit.ancestors([tensor.op]))
