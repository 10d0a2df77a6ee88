"""Records every gradient that TensorFlow creates while a graph is built.

Walking back from an update op cannot distinguish the model's own clipping from an op in the backward pass. The boundary
between the two is therefore recorded when it is created: `tf.gradients`, `Optimizer.compute_gradients` and `minimize`
all call the same TensorFlow function, which this module wraps on import. The gradients' names are stored in a graph
collection, because collections survive export and import.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import gradients_util, resource_variable_ops

COLLECTION = "parallax_runner/gradients"
# Names of the tensors whose gradients with respect to variables were computed.
LOSSES = "parallax_runner/losses"
# The names of other values whose gradients were computed, and of these gradients (gradients_of_values.py).
OF_VALUES = "parallax_runner/gradients_of_values"
# The names of variables whose gradients were computed inside a function, where they are not recorded.
IN_FUNCTIONS = "parallax_runner/gradients_in_functions"
# Ops that return a variable's value unchanged, and ops that look up rows.
COPIES = frozenset({"Identity", "ReadVariableOp", "StopGradient"})
LOOKUPS = frozenset({"Gather", "GatherV2", "ResourceGather"})


def install() -> None:
    """Wraps TensorFlow's gradient function, once per process."""
    original = gradients_util._GradientsHelper
    original = getattr(original, "unhooked", original)  # the wrapper of import_hook.py keeps the original here
    if not hasattr(original, "__wrapped__"):
        gradients_util._GradientsHelper = _recording(original)


def _recording(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gradients_helper(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        grads = original(ys, xs, *args, **kwargs)
        flat_xs = xs if isinstance(xs, Sequence) else [xs]
        if _is_in_function():
            _note_in_function(flat_xs)
            return grads
        if len(flat_xs) != len(grads):
            return grads
        recorded = [_recorded(x, grad) for x, grad in zip(flat_xs, grads, strict=True)]
        if any(variable_name(x) is not None for x in flat_xs):
            for y in ys if isinstance(ys, Sequence) else [ys]:
                if isinstance(y, tf.Tensor):
                    tf.add_to_collection(LOSSES, y.name)
        return recorded

    return gradients_helper


def _is_in_function() -> bool:
    """Returns whether a function is being built.

    TensorFlow makes the same call again on another graph inside the body of a while loop or a function. Those gradients
    do not leave the backward pass.
    """
    return tf.executing_eagerly() or tf.get_default_graph().building_function


def _note_in_function(xs: Sequence[Any]) -> None:
    graph = tf.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    for x in xs:
        if resource_variable_ops.is_resource_variable(x) and not hasattr(x.handle, "numpy"):
            graph.add_to_collection(IN_FUNCTIONS, x.handle.op.name)


def where_else(graph: tf.Graph) -> str:
    """Returns a sentence about the variables whose gradients were computed inside functions, or an empty string."""
    names = sorted(set(graph.get_collection(IN_FUNCTIONS)))
    if not names:
        return ""
    listed = ", ".join(f"«{name}»" for name in names)
    return f". The gradient of {listed} is computed inside a tf.function: compute it outside the function"


def _recorded(x: Any, grad: Any) -> Any:
    if grad is None:
        return grad
    variable = variable_name(x)
    if variable is None:
        return _recorded_of_value(x, grad)
    if isinstance(grad, tf.IndexedSlices):
        grad = of_any_length(grad)
        entry = {"variable": variable, "values": grad.values.name, "indices": grad.indices.name}
    else:
        entry = {"variable": variable, "values": grad.name, "indices": None}
    tf.get_default_graph().add_to_collection(COLLECTION, json.dumps(entry))
    return grad


def _recorded_of_value(value: Any, grad: Any) -> Any:
    if not isinstance(value, tf.Tensor):
        return grad
    grad = gradient_of_value(value, grad)
    tf.get_default_graph().add_to_collection(OF_VALUES, entry_of_value(value.name, grad))
    return grad


def entry_of_value(value: str, grad: Any, scope: str = "") -> str:
    """Returns the entry of `OF_VALUES` for the gradient of the tensor named `value`. `scope` is the prefix of names."""
    is_sparse = isinstance(grad, tf.IndexedSlices)
    gradient, indices = (grad.values, scope + grad.indices.name) if is_sparse else (grad, None)
    return json.dumps({"value": scope + value, "gradient": scope + gradient.name, "indices": indices})


def gradient_of_value(value: tf.Tensor, grad: Any) -> Any:
    """Returns the gradient of a tensor. If it is an `IndexedSlices`, or if the tensor contains looked-up rows, the
    number of rows becomes unknown, because aggregation changes it."""
    if isinstance(grad, tf.IndexedSlices):
        return of_any_length(grad)
    source = value
    while source.op.type in COPIES and source.op.inputs and source.dtype != tf.resource:
        source = source.op.inputs[0]
    is_dense = isinstance(grad, tf.Tensor) and grad.shape.rank is not None
    if source.op.type not in LOOKUPS or not is_dense:
        return grad
    ids = source.op.inputs[1]
    if not ids.shape.rank or ids.shape.rank >= grad.shape.rank + 1:
        return grad
    shape = [*[None] * ids.shape.rank, *grad.shape[ids.shape.rank :]]
    return tf.placeholder_with_default(grad, shape, name=f"{grad.op.name.split('/')[-1]}/of_rows")


def of_any_length(grad: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the same gradient with an unknown number of rows.

    Aggregation changes the number of rows, but post-processing such as `tf.clip_by_norm` would store the original
    number in the graph.
    """
    with tf.name_scope(f"{grad.values.op.name}/raw/"):
        values = tf.placeholder_with_default(grad.values, [None, *grad.values.shape[1:]], name="values")
        indices = tf.placeholder_with_default(grad.indices, [None], name="indices")
    return tf.IndexedSlices(values, indices, grad.dense_shape)


def variable_name(x: Any) -> str | None:
    """Returns the name of the variable's op if `x` is a variable or the value read from a variable, otherwise None."""
    if resource_variable_ops.is_resource_variable(x):
        return x.handle.op.name
    if isinstance(x, tf.Variable):
        return x.op.name
    tensor = x
    while isinstance(tensor, tf.Tensor) and tensor.op.type in COPIES:
        tensor = tensor.op.inputs[0]
    if isinstance(tensor, tf.Tensor) and tensor.op.type in ("VarHandleOp", "VariableV2"):
        return tensor.op.name
    return None


install()
