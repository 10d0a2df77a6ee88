"""Integers that a graph computes, but whose values are known before the graph runs: shapes, and elements of shapes."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.branches import handed_through

# Ops that pass on the values of their first input.
HANDED_ON = frozenset({"Cast", "Identity"})


def known_number(tensor: tf.Tensor) -> int | None:
    """Returns the integer in a tensor if that integer is known and is the tensor's only element, otherwise None."""
    found = known_numbers(tensor)
    return found[0] if found is not None and len(found) == 1 else None


def known_numbers(tensor: tf.Tensor) -> list[int] | None:
    """Returns the integers in a tensor, in row-major order, or None if they are unknown before the graph runs."""
    found = _value(tensor)
    return None if found is None else [int(number) for number in np.ravel(found)]


def _value(tensor: tf.Tensor) -> np.ndarray | None:
    if not tensor.dtype.is_integer:
        return None
    op = tensor.op
    if op.type in HANDED_ON:
        return _value(op.inputs[0])
    if op.type == "VariableShape" and op.inputs[0].op.type == "VarHandleOp":
        return np.array(tf.TensorShape(op.inputs[0].op.get_attr("shape")).as_list())
    if (input_ := handed_through(tensor)) is not None:
        return _value(input_)
    if op.type == "StridedSlice":
        return _taken(op)
    return tf.get_static_value(tensor)


def _taken(op: tf.Operation) -> np.ndarray | None:
    """Returns the single element that the op takes from a vector, or None if it is unknown."""
    if op.get_attr("shrink_axis_mask") != 1:
        return None
    vector, begin = _value(op.inputs[0]), tf.get_static_value(op.inputs[1])
    return None if vector is None or begin is None or vector.ndim != 1 else vector[begin[0]]
