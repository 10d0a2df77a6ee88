"""Traces ids through ops that keep the ids' values, to find the tensors that contain the same ids."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

# Ops that pass on the values of their first input, and an op that passes on the values of all inputs except the axis.
OF_ONE = frozenset({"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"})
OF_ALL = "ConcatV2"
# The op whose first output contains the distinct values of its input.
DISTINCT = "Unique"


def sources(ids: tf.Tensor) -> frozenset[str]:
    """Returns the names of tensors that together contain exactly these values, in any order and with any
    repetitions."""
    if ids.op.type in OF_ONE or (ids.op.type == DISTINCT and ids is ids.op.outputs[0]):
        return sources(ids.op.inputs[0])
    if ids.op.type == OF_ALL:
        return frozenset().union(*(sources(each) for each in ids.op.inputs[:-1]))
    return frozenset({ids.name})


def in_order(ids: tf.Tensor) -> tuple[str, ...]:
    """Returns the names of tensors whose concatenated values are exactly these values in the same order."""
    if ids.op.type in OF_ONE:
        return in_order(ids.op.inputs[0])
    if ids.op.type == OF_ALL and all(each.shape.rank == 1 for each in ids.op.inputs[:-1]):
        return tuple(name for each in ids.op.inputs[:-1] for name in in_order(each))
    return (ids.name,)
