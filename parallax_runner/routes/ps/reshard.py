"""Reshards the variables of a running cluster: moves rows to the servers that a different plan assigns to them.

Variables belong to servers, not to sessions, so variables keep their values between two sessions on one cluster. Only
rows that the new plan places on other servers or in other shards are moved. These rows are sent directly from server to
server. Variables on ranks stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.plan.plan import Plan, Route, Shard
from parallax_runner.routes.ps.on_servers import shard_handle

# The size of one message. Many servers may send to the same server at the same time, and each chunk is in memory twice.
CHUNK_BYTES = 16 * 2**20


def reshard(graph: tf.Graph, before: Plan, after: Plan) -> tf.Operation:
    """Returns the op that moves variables on servers, and their slots, from the shards of one plan to the shards of a
    different plan.

    The chief runs the op while no rank is in a step. The op also frees the memory of old shards. `graph` is a rank's
    graph for the plan `after`. Both plans must be for the same graph and differ only in shards and their servers.
    """
    shards_before = {planned.name: planned.shards for planned in before.by_route(Route.PS)}
    done: list[tf.Operation] = []
    with graph.as_default(), tf.name_scope("recut/"):
        for planned in after.by_route(Route.PS):
            old, new = shards_before[planned.name], planned.shards
            for name in (planned.name, *planned.slots):
                # Variables are moved one after the other, so that at most one variable is in memory twice.
                with tf.control_dependencies(done):
                    filled = [_fill(graph, name, planned.shape, old, shard) for shard in new if shard not in old]
                with tf.control_dependencies([*done, *filled]):
                    freed = [_free(graph, name, planned.shape, shard) for shard in old if shard not in new]
                done = freed or [*done, *filled]
        return tf.group(*done)


def _fill(graph: tf.Graph, name: str, shape: tuple[int, ...], old: Sequence[Shard], shard: Shard) -> tf.Operation:
    """Creates a new shard, and copies its rows from the old shards in chunks of CHUNK_BYTES, one after the other."""
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
    """Returns the rows that both shards contain."""
    mine, theirs = _rows(one), _rows(other)
    step = math.lcm(one.step, other.step)
    first = next((row for row in mine[: step // one.step] if row in theirs), None)
    return range(0) if first is None else range(first, min(mine.stop, theirs.stop), step)


def _rows(shard: Shard) -> range:
    return range(shard.offset, shard.offset + shard.rows * shard.step, shard.step)


def _places(rows: range, shard: Shard) -> range:
    """Returns the positions of rows in a shard that contains these rows."""
    step = rows.step // shard.step
    first = (rows.start - shard.offset) // shard.step
    return range(first, first + (len(rows) - 1) * step + 1, step)


def _read(name: str, dtype: tf.DType, shape: tuple[int, ...], shard: Shard) -> tf.Tensor:
    with tf.device(server_device(shard.server)):
        handle = shard_handle(name, dtype, shape, shard, op_name="source")
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        # The result of a read or a slice would share its memory with the variable, which is soon freed.
        return value if shape else tf.raw_ops.DeepCopy(x=value)


def _free(graph: tf.Graph, name: str, shape: tuple[int, ...], shard: Shard) -> tf.Operation:
    dtype = graph.get_operation_by_name(name).get_attr("dtype")
    handle = shard_handle(name, dtype, shape, shard, op_name="left")
    with tf.device(server_device(shard.server)):
        return tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=False)
