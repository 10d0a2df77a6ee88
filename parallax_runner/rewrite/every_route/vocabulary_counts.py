"""Counts the keys in the maps of vocabularies that grow."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph.growing.marks import KeyCall, key_calls
from parallax_runner.rewrite.distributed_graph import LogicalVariable, VocabularyCounts
from parallax_runner.rewrite.rewrite_state import Rewrite


def vocabulary_counts(rewrite: Rewrite, variables: Iterable[LogicalVariable]) -> dict[str, VocabularyCounts]:
    """Returns the counts of each vocabulary into which the step inserts keys, by the path of its layer. `variables` are
    those of `rewrite`."""
    inserting = [call for call in key_calls(rewrite.graph.get_operations()) if call.write is not None]
    of_tables = {call.table.table: call for call in inserting}
    by_name = {one.name: one for one in variables}
    return {table: _counts(call, by_name) for table, call in of_tables.items()}


def _counts(call: KeyCall, variables: dict[str, LogicalVariable]) -> VocabularyCounts:
    handles = call.handles
    fill = _own(handles.fill, variables)
    fullest = tf.reduce_max(tf.concat([fill, [0]], axis=0))  # of more than 1,024 ranks, some have no bucket
    of_rules = {
        name: tf.reduce_sum(_own(handle, variables))
        for name, handle in (("waiting", handles.waiting), ("evicted", handles.evicted))
        if handle is not None
    }
    return VocabularyCounts(
        capacity=fill.shape[0] * call.table.places,
        places=call.table.places,
        keys=tf.reduce_sum(fill),
        fullest=fullest,
        overflow=tf.reduce_sum(_own(handles.overflow, variables)),
        **of_rules,
    )


def _own(handle: tf.Tensor, variables: dict[str, LogicalVariable]) -> tf.Tensor:
    """Reads this rank's own buckets of a variable of a map, or all of them (int64). `Piece.read` would gather those of
    all ranks."""
    (piece,) = variables[handle.op.name].pieces
    dtype, shape = piece.handle.op.get_attr("dtype"), tf.TensorShape(piece.handle.op.get_attr("shape"))
    value = tf.raw_ops.ReadVariableOp(resource=piece.handle, dtype=dtype)
    return tf.cast(tf.ensure_shape(value, shape), tf.int64)
