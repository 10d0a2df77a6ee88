"""Checks that each validation value depends only on variables and one batch, and that its ops write nothing."""

from __future__ import annotations

import re

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import variable_pb2

from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.effects import Effects
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
    if not single.fetched_in_validation:
        return
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    effects = Effects.of(graph)
    for tensor in single.fetched_in_validation:
        what = "validation_loss" if tensor == single.validation_loss else "metric"
        _check(single, graph, effects, tensor, what)


def _check(single: SingleDeviceGraph, graph: tf.Graph, effects: Effects, tensor: str, what: str) -> None:
    metrics = _metric_variables(single.meta_graph)
    needed = edit.ancestors([graph.get_tensor_by_name(tensor).op])
    for op in [each for each in graph.get_operations() if each in needed]:
        types = [op.type, *effects.called_by(op.node_def)]
        if effects.written_by(op) or any(map(_WRITES_RESOURCE.search, types)):
            raise PlanError(
                f"the model's {what} «{tensor}» needs «{op.name}» ({op.type}), which writes "
                f"a variable or another resource. {_REMEDY}"
            )
        if op.name in metrics:
            raise PlanError(
                f"the model's {what} «{tensor}» reads «{op.name}», a variable in which "
                f"tf.metrics accumulates over batches. {_REMEDY}"
            )


def _metric_variables(meta_graph: tf.MetaGraphDef) -> set[str]:
    serialized = meta_graph.collection_def[tf.GraphKeys.METRIC_VARIABLES].bytes_list.value
    return {variable_pb2.VariableDef.FromString(one).variable_name.split(":")[0] for one in serialized}
