"""Checks that each validation value depends only on variables and one batch, and that its ops write nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import variable_pb2

from parallax_runner.analysis.effects import Effects
from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

# Writes to lookup tables, queues and accumulators.
_WRITES_RESOURCE = re.compile(r"LookupTable(Insert|Import|Remove)|QueueEnqueue|AccumulatorApplyGradient")
_REMEDY = (
    "Each rank computes this value for each of its batches, and the run reports the mean; return the value of one "
    "batch, without tf.metrics and without updates"
)


def check_validation_loss(single: SingleDeviceGraph) -> None:
    """Raises PlanError if the validation loss or a validation metric accumulates over batches, as values from
    `tf.metrics` do."""
    for tensor in single.fetched_in_validation:
        _check(single, tensor, "validation_loss" if tensor == single.validation_loss else "metric")


def _check(single: SingleDeviceGraph, tensor: str, what: str) -> None:
    graph_def = single.meta_graph.graph_def
    functions = Effects({one.signature.name: one for one in graph_def.library.function})
    metrics = _metric_variables(single.meta_graph)
    for node in _needed(graph_def, tensor):
        if any(edit.writes(op) or _WRITES_RESOURCE.search(op) for op in [node.op, *functions.called_by(node)]):
            raise PlanError(
                f"the model's {what} «{tensor}» needs «{node.name}» ({node.op}), which writes "
                f"a variable or another resource. {_REMEDY}"
            )
        if node.name in metrics:
            raise PlanError(
                f"the model's {what} «{tensor}» reads «{node.name}», a variable in which "
                f"tf.metrics accumulates over batches. {_REMEDY}"
            )


def _metric_variables(meta_graph: tf.MetaGraphDef) -> set[str]:
    serialized = meta_graph.collection_def[tf.GraphKeys.METRIC_VARIABLES].bytes_list.value
    return {variable_pb2.VariableDef.FromString(one).variable_name.split(":")[0] for one in serialized}


def _needed(graph_def: tf.GraphDef, tensor: str) -> Iterable[tf.NodeDef]:
    """Returns the nodes that a tensor depends on, in graph order."""
    nodes = {node.name: node for node in graph_def.node}
    needed: set[str] = set()
    stack = [tensor]
    while stack:
        name = stack.pop().lstrip("^").split(":")[0]
        if name not in needed:
            needed.add(name)
            stack.extend(nodes[name].input)
    return [node for node in graph_def.node if node.name in needed]
