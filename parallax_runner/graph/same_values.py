"""Traces ids through ops that keep the ids' values, to find the tensors that contain the same ids."""

from __future__ import annotations

from collections.abc import Hashable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit

# Ops that pass on the values of their first input, and an op that passes on the values of all inputs except the axis.
OF_ONE = frozenset({"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"})
OF_ALL = "ConcatV2"
# The op whose first output contains the distinct values of its input.
DISTINCT = "Unique"
# Ids are computed by a few ops. A longer computation counts as unique.
MAX_DEPTH = 12


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


def computation_of(ids: tf.Tensor, depth: int = 0) -> Hashable:
    """Returns a value that is equal for two tensors if both contain the same values in the same order, because the same
    ops compute them from the same tensors. The shapes may differ."""
    op = ids.op
    if op.type in OF_ONE and op.inputs[0].dtype.is_integer:
        return computation_of(op.inputs[0], depth)
    is_computed = bool(op.inputs) or op.type == "Const"
    if depth == MAX_DEPTH or not is_computed or not edit.is_plain(op):
        return ids.name
    settings = {key: attr.SerializeToString() for key, attr in op.node_def.attr.items() if not key.startswith("_")}
    inputs = tuple(computation_of(each, depth + 1) for each in op.inputs)
    return op.type, ids.value_index, tuple(sorted(settings.items())), inputs
