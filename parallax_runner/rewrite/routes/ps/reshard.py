"""Reshards the variables of a running cluster: rows go from the servers that have them to those of another plan.

Variables live in servers, not in sessions: between two sessions on one cluster they keep their values. So only what the
new plan has elsewhere, or in other shards, is to be moved, from server to server; what ranks keep stays where it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.plan.plan import Plan, Route, Shard
from parallax_runner.rewrite.routes.ps.on_servers import shard_handle

# Of a message: many servers send to one at the same time, and each part is in memory twice.
CHUNK_BYTES = 16 * 2**20


def reshard(graph: tf.Graph, before: Plan, after: Plan) -> tf.Operation:
    """The op that takes variables on servers, and their slots, from the shards of one plan to those of another.

    The chief runs it while no rank is in a step. It also gives back the memory of shards that are no longer wanted.
    `graph` is a rank's for the plan `after`; both plans are of one graph, and differ only in shards and their servers.
    """
    shards_before = {planned.name: planned.shards for planned in before.by_route(Route.PS)}
    done: list[tf.Operation] = []
    with graph.as_default(), tf.name_scope("recut/"):
        for planned in after.by_route(Route.PS):
            old, new = shards_before[planned.name], planned.shards
            for name in (planned.name, *planned.slots):
                # One after the other: then there is never more than one of them twice.
                with tf.control_dependencies(done):
                    filled = [_fill(graph, name, planned.shape, old, shard) for shard in new if shard not in old]
                with tf.control_dependencies([*done, *filled]):
                    freed = [_free(graph, name, planned.shape, shard) for shard in old if shard not in new]
                done = freed or [*done, *filled]
        return tf.group(*done)


def _fill(graph: tf.Graph, name: str, shape: tuple[int, ...], old: Sequence[Shard], shard: Shard) -> tf.Operation:
    """Makes a new shard of what the old ones have of it, in parts of CHUNK_BYTES, one after the other."""
    dtype = graph.get_operation_by_name(name).get_attr("dtype")
    handle = shard_handle(name, dtype, shape, shard, op_name="filled")
    row_bytes = dtype.size * math.prod(shape[1:])
    chunk_rows = max(1, CHUNK_BYTES // max(1, row_bytes))
    with tf.device(server_device(shard.server)):
        if not shape:
            (source,) = old
            return tf.raw_ops.AssignVariableOp(resource=handle, value=_read(name, dtype, shape, source))
        room = tf.raw_ops.Empty(shape=[shard.rows, *shape[1:]], dtype=dtype)
        last = tf.raw_ops.AssignVariableOp(resource=handle, value=room)
    for source in old:
        common = _common_rows(shard, source)
        for chunk in (common[first : first + chunk_rows] for first in range(0, len(common), chunk_rows)):
            there, here = _places(chunk, source), _places(chunk, shard)
            with tf.control_dependencies([last]):
                with tf.device(server_device(source.server)):
                    rows = _read(name, dtype, shape, source)[there.start : there.stop : there.step]
                with tf.device(server_device(shard.server)):
                    last = tf.raw_ops.ResourceStridedSliceAssign(
                        ref=handle, begin=[here.start], end=[here.stop], strides=[here.step], value=rows
                    )
    return last


def _common_rows(one: Shard, other: Shard) -> range:
    """The rows that both have."""
    mine, theirs = _rows(one), _rows(other)
    step = math.lcm(one.step, other.step)
    first = next((row for row in mine[: step // one.step] if row in theirs), None)
    return range(0) if first is None else range(first, min(mine.stop, theirs.stop), step)


def _rows(shard: Shard) -> range:
    return range(shard.offset, shard.offset + shard.rows * shard.step, shard.step)


def _places(rows: range, shard: Shard) -> range:
    """Where rows that a shard has stand in it."""
    step = rows.step // shard.step
    first = (rows.start - shard.offset) // shard.step
    return range(first, first + (len(rows) - 1) * step + 1, step)


def _read(name: str, dtype: tf.DType, shape: tuple[int, ...], shard: Shard) -> tf.Tensor:
    with tf.device(server_device(shard.server)):
        handle = shard_handle(name, dtype, shape, shard, op_name="source")
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        # What is read, or sliced, shares its memory with the variable, which is soon to go.
        return value if shape else tf.raw_ops.DeepCopy(x=value)


def _free(graph: tf.Graph, name: str, shape: tuple[int, ...], shard: Shard) -> tf.Operation:
    dtype = graph.get_operation_by_name(name).get_attr("dtype")
    handle = shard_handle(name, dtype, shape, shard, op_name="left")
    with tf.device(server_device(shard.server)):
        return tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=False)
