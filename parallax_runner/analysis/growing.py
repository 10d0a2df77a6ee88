"""Finds the tables whose vocabularies grow in a training step."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.variable_info import GrowingTable
from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.growing.marks import KeyCall, is_growing, key_calls
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def growing_tables(single: SingleDeviceGraph) -> tuple[GrowingTable, ...]:
    """Returns the tables into which a training step inserts keys.

    Raises PlanError if a training step looks up keys in a table without inserting them, or inserts keys into a table
    that it does not train.
    """
    if not any(is_growing(node) for node in single.meta_graph.graph_def.node):
        return ()
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    ends = [graph.get_operation_by_name(single.train_op), graph.get_tensor_by_name(single.loss).op]
    calls = key_calls(edit.ancestors(ends))
    _refuse_steps_without_inserts(calls)
    found = [
        GrowingTable(
            layer=call.table.table,
            variable=call.write.inputs[0].op.name,
            map_variables=tuple(handle.op.name for handle in call.handles),
            places=call.table.places,
            has_overflow_rows=call.table.has_overflow_rows,
        )
        for call in calls
        if call.write is not None
    ]
    _refuse_untrained(found, single)
    return tuple(dict.fromkeys(found))


def _refuse_untrained(tables: Sequence[GrowingTable], single: SingleDeviceGraph) -> None:
    trained = {gradient.variable for gradient in single.gradients}
    for table in tables:
        if table.variable not in trained:
            raise PlanError(
                f"the vocabulary of «{table.layer}» (GrowingEmbedding) grows, but no gradient reaches its rows "
                f"«{table.variable}»: set trainable=True, or call the layer with training=False"
            )


def _refuse_steps_without_inserts(calls: Sequence[KeyCall]) -> None:
    inserting = {call.table.table for call in calls if call.write is not None}
    for call in calls:
        if call.table.table not in inserting:
            raise PlanError(
                f"the training step calls «{call.table.table}» (GrowingEmbedding) without training=True, so its "
                "vocabulary would never grow: call the model with training=True in the training step"
            )
