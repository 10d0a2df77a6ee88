"""Tensors that have the numbers of others: which ids are the same ids."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

# Ops that hand on the numbers of their first input, and of all their inputs but the axis.
OF_ONE = frozenset({"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"})
OF_ALL = "ConcatV2"
# Its first output has the numbers of its input, each once.
DISTINCT = "Unique"


def sources(ids: tf.Tensor) -> frozenset[str]:
    """The names of tensors that together have exactly these numbers, whatever their order and repetitions."""
    if ids.op.type in OF_ONE or (ids.op.type == DISTINCT and ids is ids.op.outputs[0]):
        return sources(ids.op.inputs[0])
    if ids.op.type == OF_ALL:
        return frozenset().union(*(sources(each) for each in ids.op.inputs[:-1]))
    return frozenset({ids.name})
