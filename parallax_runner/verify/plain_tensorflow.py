"""Runs a user's own training step in plain TensorFlow, with the only change that the definition of a correct step
demands: gradients are merged first (docs/correct-step.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function


@contextmanager
def plain_tensorflow(*, dense: bool) -> Iterator[None]:
    """Merges the rows of every sparse gradient during the `with` block. With `dense`, also makes the gradient dense.

    TensorFlow neither optimizes functions in the block nor compiles them with XLA, because the results would be rounded
    differently.
    """
    before = tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]
    with ExitStack() as stack:
        stack.enter_context(_merged(dense=dense))
        stack.enter_context(_traced_anew())
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        try:
            yield
        finally:
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


@contextmanager
def _merged(*, dense: bool) -> Iterator[None]:
    original = tf.GradientTape.gradient

    def merge(gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        rows = merged_rows(gradient)
        return tf.convert_to_tensor(rows) if dense else rows

    def gradient(this: Any, *args: Any, **kwargs: Any) -> Any:
        return tf.nest.map_structure(merge, original(this, *args, **kwargs))

    with mock.patch.object(tf.GradientTape, "gradient", gradient):
        yield


def merged_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the rows of equal ids in the widest type, as the reference does. The ids are then distinct and ascending."""
    wide = tf.complex128 if gradient.dtype.is_complex else tf.float64
    indices = tf.cast(gradient.indices, tf.int64)
    distinct, _ = tf.unique(tf.sort(indices))
    positions = tf.searchsorted(distinct, indices, out_type=tf.int64)
    rows = tf.math.unsorted_segment_sum(tf.cast(gradient.values, wide), positions, tf.size(distinct))
    return tf.IndexedSlices(
        tf.cast(rows, gradient.dtype), tf.cast(distinct, gradient.indices.dtype), gradient.dense_shape
    )


@contextmanager
def _traced_anew() -> Iterator[None]:
    """Calls a new copy of each `tf.function` during the `with` block.

    A function that the user has called before was traced with gradients that are not merged. A function that the user
    calls later must not contain the merging.
    """
    # The original is kept too, because another function could otherwise get its id.
    copies: dict[int, tuple[Any, Any]] = {}
    call = polymorphic_function.Function.__call__

    def call_copy(this: Any, *args: Any, **kwargs: Any) -> Any:
        if id(this) not in copies:
            copies[id(this)] = this, _copy(this)
        return call(copies[id(this)][1], *args, **kwargs)

    with mock.patch.object(polymorphic_function.Function, "__call__", call_copy):
        yield


def _copy(function: Any) -> Any:
    copy = function._clone(None)
    copy._jit_compile = None
    return copy
