"""Makes TensorFlow's own gradients have each id once, as the package's gradients have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.ops import gradients_impl
from tensorflow.python.training import optimizer as v1_optimizer


@contextmanager
def merged_gradients(*, dense: bool) -> Iterator[None]:
    """Adds up the slices of a gradient that have the same id, in the results of tapes, `tf.gradients` and TensorFlow
    1's optimizers during the `with` block. Nothing else of TensorFlow changes.

    With `dense`, such a gradient becomes a tensor, because Keras cannot apply all of its settings to slices.
    """
    merge = tf.convert_to_tensor if dense else _with_each_id_once
    tape, graph = tf.GradientTape.gradient, gradients_impl.gradients_v2

    def of_tape(this: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        return _each(merge, tape(this, target, sources, *args, **kwargs))

    def of_graph(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        return _each(merge, graph(ys, xs, *args, **kwargs))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(tf.GradientTape, "gradient", of_tape))
        stack.enter_context(mock.patch.object(tf, "gradients", of_graph))
        stack.enter_context(mock.patch.object(v1_optimizer.gradients, "gradients", _for_v1(of_graph)))
        yield


def _for_v1(of_graph: Callable[..., Any]) -> Callable[..., Any]:
    def gradients(ys: Any, xs: Any, *, grad_ys: Any = None, **arguments: Any) -> Any:
        arguments.pop("colocate_gradients_with_ops", None)
        return of_graph(ys, xs, grad_ys=grad_ys, **arguments)

    return gradients


def _each(merge: Callable[[Any], Any], found: Any) -> Any:
    if not isinstance(found, list | tuple):
        return merge(found) if isinstance(found, tf.IndexedSlices) else found
    return [_each(merge, gradient) if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in found]


def _with_each_id_once(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    ids, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
    return tf.IndexedSlices(values, ids, gradient.dense_shape)
