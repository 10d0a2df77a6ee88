"""Replaces reads of whole tables with lookups of rows.

Keras reads a whole variable and gathers rows from the value. A lookup in the variable returns the same rows without
reading the whole table. Shapes of variables become constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit


def look_up_rows(graph: tf.Graph) -> None:
    """Replaces gathers from variable reads, and shapes of such reads, in a newly imported graph."""
    replaced: list[tuple[tf.Tensor, tf.Tensor]] = []
    with graph.as_default():
        for read in [op for op in graph.get_operations() if op.type == "ReadVariableOp"]:
            if read.inputs[0].op.type == "VarHandleOp":
                replaced += _replacements(read, read.outputs[0])
    edit.reconnect_all(replaced)


def _replacements(read: tf.Operation, value: tf.Tensor) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Adds the lookups and shapes. Yields each tensor that is computed from the read, and the tensor that replaces
    it."""
    for user in sorted(value.consumers(), key=lambda op: op.name):
        if user.type == "Shape" and value.shape.is_fully_defined():
            shape = tf.constant(value.shape.as_list(), user.outputs[0].dtype, name=f"{user.name}/known")
            yield user.outputs[0], shape
        elif user.type == "Cast" and value.op == read:
            yield from _replacements(read, user.outputs[0])
        elif user.type == "GatherV2" and user.inputs[0] is value and _is_by_rows(user):
            rows = _look_up(read, user)
            if rows is not None:
                yield user.outputs[0], rows


def _is_by_rows(gather: tf.Operation) -> bool:
    axis = tf.get_static_value(gather.inputs[2])
    return axis is not None and int(axis) == 0 and not gather.get_attr("batch_dims")


def _look_up(read: tf.Operation, gather: tf.Operation) -> tf.Tensor | None:
    """Adds a lookup, and returns its rows. Returns None if there can be no lookup."""
    table, ids = read.inputs[0], gather.inputs[1]
    if set(read._control_outputs) & edit.ancestors([ids.op]):
        return None  # the ids depend on a later write, so the rows must come from the value before it
    if ids.dtype not in (tf.int32, tf.int64):  # a lookup in a tensor also accepts short ids
        ids = tf.cast(ids, tf.int32, name=f"{gather.name}/ids")
    with tf.control_dependencies(list(read.control_inputs)), tf.name_scope(f"{gather.name}/rows/"):
        rows: Any = tf.raw_ops.ResourceGather(resource=table, indices=ids, dtype=read.outputs[0].dtype)
    for waiting in list(read._control_outputs):
        edit.set_control_inputs(waiting, [*waiting.control_inputs, rows.op])
    if rows.dtype != gather.outputs[0].dtype:
        with tf.name_scope(f"{gather.name}/rows/"):
            rows = tf.cast(rows, gather.outputs[0].dtype)
    return rows
