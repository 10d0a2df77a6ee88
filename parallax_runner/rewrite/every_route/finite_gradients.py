"""Checks which gradients of a worker are finite. A loss can be finite although a gradient is not: relu(NaN) is 0."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.rewrite_state import Rewrite


def finite_gradients(replicas: Sequence[Rewrite]) -> tf.Tensor:
    """Returns a bool for each gradient of the single-device graph: whether it is finite in all replicas of a worker.

    A step computes these values only if they are fetched.
    """
    with tf.name_scope("finite_gradients/"), tf.control_dependencies(None):
        of_replicas = [_finite(rewrite) for rewrite in replicas]
        return of_replicas[0] if len(of_replicas) == 1 else tf.reduce_all(tf.stack(of_replicas), axis=0)


def _finite(rewrite: Rewrite) -> tf.Tensor:
    values = [rewrite.tensor(gradient.values) for gradient in rewrite.single.gradients]
    return tf.stack([_is_finite(value) for value in values])


def _is_finite(value: tf.Tensor) -> tf.Tensor:
    if not (value.dtype.is_floating or value.dtype.is_complex):
        return tf.constant(True)
    return tf.reduce_all(tf.math.is_finite(value))
