"""Finds variables that must stay with the ranks, because only the process that holds a variable can run some op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary
from parallax_runner.graph.growing.marks import is_marked
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

# Ops that can use a variable on a server, in addition to updates (routes/ps/shards.py).
SERVER_READS = frozenset({"ReadVariableOp", "ResourceGather", "VariableShape", "VarIsInitializedOp"})
# Parts of the types of ops that hand a variable to a branch, a loop or a function.
HANDS_OVER = ("If", "While", "Case", "Call", "Switch", "Enter", "For", "Map")


@dataclass(frozen=True)
class Immovable:
    """The op that keeps a variable with the ranks. `why` follows the op's name in a sentence."""

    op: str
    why: str


def immovable_ops(
    graph: tf.Graph, boundary: Boundary, single: SingleDeviceGraph, owners: Mapping[str, str]
) -> dict[str, Immovable]:
    """Returns, for each immovable variable, an op of a step that can use the variable or its slot only in the process
    that holds the variable.

    Examples are a branch, a loop or a function that takes the handle itself, and an update for which a forward pass or
    the loss of the same step waits.
    """
    fetched = [single.loss, *single.fetched_in_training, *single.fetched_in_validation]
    outputs = edit.ancestors(_ops(graph, fetched))
    needed = outputs | edit.ancestors([graph.get_operation_by_name(single.train_op)])
    forward = edit.ancestors(_ops(graph, [gradient.values for gradient in boundary.gradients]))
    trained = {gradient.variable for gradient in boundary.gradients}
    found: dict[str, Immovable] = {}
    for op in sorted(needed, key=lambda op: op.name):
        for handle in edit.handle_of(op):
            owner = owners.get(handle.name, handle.name)
            if owner not in trained or op.type in SERVER_READS or is_marked(op):
                continue
            is_update = edit.updates_places(op.type) and op in boundary.region
            why = _why(op, is_update=is_update, is_early=op in forward, is_awaited=op in outputs)
            if why is not None:
                found.setdefault(owner, Immovable(op.name, why))
    return found


def _why(op: tf.Operation, *, is_update: bool, is_early: bool, is_awaited: bool) -> str | None:
    """Returns why an op prevents placing its variable on a server, or None if it does not."""
    if op.type == "ResourceGatherNd":
        return "looks up rows with tf.gather_nd; use tf.gather or tf.nn.embedding_lookup"
    if not is_update:
        hands_over = any(part in op.type for part in HANDS_OVER)
        return "uses it in a branch, a loop or a function" if hands_over else f"({op.type}) uses it directly"
    if is_early:
        return "writes it before a forward pass of the same step"
    if is_awaited:
        return "writes it before the loss or a metric is computed; compute these from the values before the update"
    return None


def _ops(graph: tf.Graph, tensors: Iterable[str]) -> list[tf.Operation]:
    return [graph.get_tensor_by_name(name).op for name in tensors]
