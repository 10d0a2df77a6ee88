"""Pass: put variables of the ps route on servers, in shards of rows, and read them from there.

Variables are split by surgery on handles: the model is not built again, so any variable can be split (made by
`get_variable`, `tf.Variable` or a layer), row i stays row i, and initial values do not depend on the number of
partitions (docs/design/0004-partitioning.md).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import SERVER_READS
from parallax_runner.graph import edit
from parallax_runner.plan.plan import Route, VariablePlan
from parallax_runner.rewrite.distributed_graph import Rewrite, Shard


def server_device(server: int) -> str:
    """The device of a server's variables."""
    return f"/job:ps/task:{server}/device:CPU:0"


def shard_variables(rewrite: Rewrite) -> None:
    """Creates the shards of every variable on the ps route and of its slots, and redirects what reads them."""
    variables = {variable.name: variable for variable in rewrite.single.variables}
    for planned in rewrite.plan.by_route(Route.PS):
        for name in (planned.name, *planned.slots):
            shards = rewrite.shards[rewrite.op(name).name] = _make_shards(rewrite, name, planned)
            rewrite.shard_initializers += _initialize_shards(shards, rewrite.op(variables[name].initializer))
            _redirect_reads(rewrite, name, variables[name].shape)


def _make_shards(rewrite: Rewrite, name: str, planned: VariablePlan) -> list[Shard]:
    dtype = rewrite.op(name).get_attr("dtype")
    shards = []
    for number, piece in enumerate(planned.shards):
        device = server_device(piece.server)
        with rewrite.graph.device(device):
            handle = tf.raw_ops.VarHandleOp(
                dtype=dtype,
                shape=[piece.rows, *planned.shape[1:]] if planned.shape else [],
                shared_name=f"{name}/shard_{number}",
                name=f"{name}/shard_{number}",
            )
        shards.append(Shard(handle=handle, offset=piece.offset, rows=piece.rows, device=device))
    return shards


def _initialize_shards(shards: list[Shard], initializer: tf.Operation) -> list[tf.Operation]:
    """Assigns each shard its rows of the whole initial value, drawn once as for one device."""
    value = initializer.inputs[1]
    ops = []
    for shard in shards:
        rows = value if len(shards) == 1 else value[shard.offset : shard.offset + shard.rows]
        with tf.device(shard.device):
            ops.append(tf.raw_ops.AssignVariableOp(resource=shard.handle, value=rows))
    return ops


def _redirect_reads(rewrite: Rewrite, name: str, shape: tuple[int, ...]) -> None:
    handle = rewrite.op(name).outputs[0]
    shards = rewrite.shards_of(name)
    shared_read: tf.Tensor | None = None
    for op in sorted(handle.consumers(), key=lambda op: op.name):
        if op.type not in SERVER_READS:
            continue
        with tf.control_dependencies(op.control_inputs), tf.name_scope(f"shards/{op.name}/"):
            if op.type == "ResourceGather":
                result = gather(rewrite, shards, op.inputs[1], shape)
            elif op.type == "VariableShape":
                result = tf.constant(shape, op.outputs[0].dtype)
            elif op.type == "VarIsInitializedOp":
                # Asked where another variable starts from this one's value: its initial value is the same, and there.
                result = tf.constant(False)
            elif op.control_inputs:
                result = read(shards, op.get_attr("dtype"))
                rewrite.sent.append((result, 1))
            else:
                # Reads that wait for nothing may share one value: it travels once.
                if shared_read is None:
                    shared_read = read(shards, op.get_attr("dtype"))
                    rewrite.sent.append((shared_read, 1))
                result = shared_read
        # In the update region the chief alone reads, between aggregating and updating (sharded_update.py).
        stays = op in rewrite.region and op.type in ("ReadVariableOp", "ResourceGather")
        edit.reconnect(op.outputs[0], result, where=_outside(rewrite.region if stays else frozenset()))
        rewrite.stands_for[op.outputs[0].name] = result


def _outside(region: frozenset[tf.Operation]) -> Callable[[tf.Operation], bool]:
    return lambda op: op not in region


def read(shards: list[Shard], dtype: tf.DType) -> tf.Tensor:
    """The whole variable, brought together from its shards."""
    parts = []
    for shard in shards:
        with tf.device(shard.device):
            parts.append(tf.raw_ops.ReadVariableOp(resource=shard.handle, dtype=dtype))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def gather(rewrite: Rewrite, shards: list[Shard], ids: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Rows of a sharded variable: each distinct id asks its owner once, then rows are spread to where ids stand."""
    distinct, position = tf.unique(tf.reshape(ids, [-1]))
    parts, positions = partition_ids(distinct, shards)
    rows = []
    for shard, part in zip(shards, parts, strict=True):
        with tf.device(shard.device):
            rows.append(
                tf.raw_ops.ResourceGather(
                    resource=shard.handle, indices=part - tf.cast(shard.offset, part.dtype), dtype=shard_dtype(shard)
                )
            )
        rewrite.sent += [(part, 1), (rows[-1], 1)]
    found = rows[0] if len(rows) == 1 else tf.dynamic_stitch(positions, rows)
    row_shape = tf.constant(shape[1:], tf.int32)
    result = tf.reshape(tf.gather(found, position), tf.concat([tf.shape(ids), row_shape], axis=0))
    result.set_shape(ids.shape.concatenate(shape[1:]))
    return result


def shard_dtype(shard: Shard) -> tf.DType:
    """The dtype of the values behind a shard's handle."""
    return shard.handle.op.get_attr("dtype")


def partition_ids(ids: tf.Tensor, shards: list[Shard]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """ids [n] by owner, and the positions in `ids` where each owner's stand."""
    if len(shards) == 1:
        return [ids], [tf.range(tf.size(ids))]
    starts = tf.constant([shard.offset for shard in shards[1:]], ids.dtype)
    owner = tf.searchsorted(starts, ids, side="right")
    return (
        tf.dynamic_partition(ids, owner, len(shards)),
        tf.dynamic_partition(tf.range(tf.size(ids)), owner, len(shards)),
    )
