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
    (fill,) = variables[call.handles.fill.op.name].pieces
    (overflow,) = variables[call.handles.overflow.op.name].pieces
    # The handle has this rank's own buckets, or all of them. `Piece.read` would gather those of all ranks.
    own_fill = tf.raw_ops.ReadVariableOp(resource=fill.handle, dtype=tf.int32)
    own_overflow = tf.raw_ops.ReadVariableOp(resource=overflow.handle, dtype=tf.int64)
    (buckets,) = fill.handle.op.get_attr("shape").dim
    fullest = tf.reduce_max(tf.concat([own_fill, [0]], axis=0))  # of more than 1,024 ranks, some have no bucket
    return VocabularyCounts(
        capacity=buckets.size * call.table.places,
        places=call.table.places,
        keys=tf.reduce_sum(tf.cast(own_fill, tf.int64)),
        fullest=tf.cast(fullest, tf.int64),
        overflow=tf.reduce_sum(own_overflow),
    )
