"""Cuts the variables of a running cluster anew: rows go from the servers that have them to those of another plan.

Variables live in servers, not in sessions: between two sessions on one cluster they keep their values. So only what the
new plan has elsewhere, or in other pieces, is to be moved, from server to server; what ranks keep stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Plan, Route, Shard
from parallax_runner.rewrite.shards import server_device, shard_handle


@dataclass(frozen=True)
class Recut:
    """Ops of the chief, to be run in this order while no rank is in a step: `move` fills the new pieces, `free` gives
    back the memory of those that the new plan does not have."""

    move: tf.Operation
    free: tf.Operation


def cut_anew(graph: tf.Graph, before: Plan, after: Plan) -> Recut:
    """Adds the ops that take variables on servers, and their slots, from the pieces of one plan to those of another.

    `graph` is a rank's for the plan `after`; both plans are of one graph, and differ only in pieces and their servers.
    """
    pieces_before = {planned.name: planned.shards for planned in before.by_route(Route.PS)}
    moves: list[tf.Operation] = []
    frees: list[tf.Operation] = []
    with graph.as_default(), tf.name_scope("recut/"):
        for planned in after.by_route(Route.PS):
            old, new = pieces_before[planned.name], planned.shards
            for name in (planned.name, *planned.slots):
                dtype = graph.get_operation_by_name(name).get_attr("dtype")
                moves += _fill(name, dtype, planned.shape, old, [piece for piece in new if piece not in old])
                for piece in (piece for piece in old if piece not in new):
                    handle = shard_handle(name, dtype, planned.shape, piece, op_name="left")
                    with tf.device(server_device(piece.server)):
                        frees.append(tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=False))
        return Recut(move=tf.group(*moves), free=tf.group(*frees))


def _fill(
    name: str, dtype: tf.DType, shape: tuple[int, ...], old: Sequence[Shard], new: Sequence[Shard]
) -> Iterator[tf.Operation]:
    for piece in new:
        parts = []
        for source in old:
            begin, end = max(piece.offset, source.offset), min(piece.offset + piece.rows, source.offset + source.rows)
            if begin >= end:
                continue
            handle = shard_handle(name, dtype, shape, source, op_name="source")
            with tf.device(server_device(source.server)):
                rows = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
                if shape and (begin, end) != (source.offset, source.offset + source.rows):
                    rows = rows[begin - source.offset : end - source.offset]
                # A slice shares the memory of the whole, which would not be given back while the slice lives.
                parts.append(tf.raw_ops.DeepCopy(x=rows) if source.server == piece.server else rows)
        handle = shard_handle(name, dtype, shape, piece, op_name="filled")
        with tf.device(server_device(piece.server)):
            value = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
            yield tf.raw_ops.AssignVariableOp(resource=handle, value=value)
