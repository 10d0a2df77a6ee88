"""Pass: put variables of the ps route on servers, in shards of rows, and read them from there.

Row i of a variable in n shards is in shard i mod n: words are often numbered by frequency, and ranges of rows would
give one server all the frequent ones (docs/design/0031-rows-modulo-shards.md).

Variables are split by surgery on handles: the model is not built again, so any variable can be split (made by
`get_variable`, `tf.Variable` or a layer), row i stays row i, and initial values do not depend on the number of
partitions (docs/design/0004-partitioning.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import SERVER_READS
from parallax_runner.graph import edit
from parallax_runner.graph.devices import PS
from parallax_runner.plan.plan import Route, VariablePlan
from parallax_runner.plan.plan import Shard as PlannedShard
from parallax_runner.rewrite.distributed_graph import Rewrite, Shard
from parallax_runner.rewrite.exchange.compression import compress, decompress
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.routes.ps.casts import connect_casts, narrow_dtype
from parallax_runner.rewrite.row_order import row_order


def server_device(server: int) -> str:
    """The device of a server's variables."""
    return f"/job:{PS}/task:{server}/device:CPU:0"


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
        with rewrite.graph.as_default():
            handle = shard_handle(name, dtype, planned.shape, piece, op_name=f"{name}/shard_{number}")
        device = server_device(piece.server)
        shards.append(Shard(handle, planned.name, piece.offset, rows=piece.rows, device=device, step=piece.step))
    return shards


def shard_handle(name: str, dtype: tf.DType, shape: tuple[int, ...], piece: PlannedShard, *, op_name: str) -> tf.Tensor:
    """The handle of a piece of a variable on its server, which knows it by its rows: a variable that is cut anew while
    its server lives has old and new pieces side by side (rewrite/routes/ps/reshard.py)."""
    with tf.device(server_device(piece.server)):
        return tf.raw_ops.VarHandleOp(
            dtype=dtype,
            shape=[piece.rows, *shape[1:]] if shape else [],
            shared_name=f"{name}/rows_{piece.offset}_{piece.rows}_{piece.step}",
            name=op_name,
        )


def _initialize_shards(shards: list[Shard], initializer: tf.Operation) -> list[tf.Operation]:
    """Assigns each shard its rows of the whole initial value, drawn once as for one device."""
    value = initializer.inputs[1]
    ops = []
    for shard in shards:
        rows = value if len(shards) == 1 else shard.take(value)
        with tf.device(shard.device):
            ops.append(tf.raw_ops.AssignVariableOp(resource=shard.handle, value=rows))
    return ops


def _redirect_reads(rewrite: Rewrite, name: str, shape: tuple[int, ...]) -> None:
    handle = rewrite.op(name).outputs[0]
    shards = rewrite.shards_of(name)
    replaced = set() if rewrite.plan.ps.boundary_between_workers_and_servers else _look_up_on_worker(rewrite, handle)
    # Reads that wait for nothing may share one value: it travels once.
    plain = []
    for op in sorted(set(handle.consumers()) - replaced, key=lambda op: op.name):
        if op.type == "ReadVariableOp" and not op.control_inputs:
            plain.append(op)
        elif op.type in SERVER_READS:
            with tf.control_dependencies(op.control_inputs), tf.name_scope(f"shards/{op.name}/"):
                _redirect(rewrite, [op], functools.partial(_answer, rewrite, op, shards, shape))
    if plain:
        with tf.name_scope(f"shards/{plain[0].name}/"):
            pulled = _redirect(rewrite, plain, functools.partial(_answer, rewrite, plain[0], shards, shape))
        rewrite.pulled[name] = pulled


def _look_up_on_worker(rewrite: Rewrite, handle: tf.Tensor) -> set[tf.Operation]:
    """Lets lookups outside the update region take rows from a read of the whole variable; returns these lookups."""
    lookups = {op for op in handle.consumers() if op.type == "ResourceGather" and op not in rewrite.region}
    for op in sorted(lookups, key=lambda op: op.name):
        with tf.control_dependencies(op.control_inputs), tf.name_scope(f"whole/{op.name}/"):
            whole = tf.raw_ops.ReadVariableOp(resource=handle, dtype=op.get_attr("dtype"))
            rows = tf.gather(whole, op.inputs[1])
        edit.reconnect(op.outputs[0], rows, where=lambda _: True)
        rewrite.stands_for[op.outputs[0].name] = rows
    return lookups


def _answer(
    rewrite: Rewrite, op: tf.Operation, shards: list[Shard], shape: tuple[int, ...], narrow: tf.DType | None
) -> tf.Tensor:
    """What the shards give for an op that reads the variable, cast to `narrow` where they stand."""
    if op.type == "ResourceGather":
        return gather(rewrite, shards, op.inputs[1], shape, narrow=narrow)
    if op.type == "VariableShape":
        return tf.constant(shape, op.outputs[0].dtype)
    if op.type == "VarIsInitializedOp":
        # Asked where another variable starts from this one's value: its initial value is the same, and there.
        return tf.constant(False)
    return read(rewrite, shards, op.get_attr("dtype"), narrow=narrow)


def _redirect(rewrite: Rewrite, ops: list[tf.Operation], answer: Callable[[tf.DType | None], tf.Tensor]) -> tf.Tensor:
    """Lets all that reads the output of these ops read `answer`'s; returns what travels for it in a step."""
    narrow = narrow_dtype(rewrite, [op.outputs[0] for op in ops])
    travelling = answer(narrow)
    whole = travelling if narrow is None else answer(None)
    for op in ops:
        if narrow is not None:
            connect_casts(rewrite, op.outputs[0], travelling)
        # In the update region the chief alone reads, between aggregating and updating (sharded_update.py).
        stays = op in rewrite.region and op.type in ("ReadVariableOp", "ResourceGather")
        edit.reconnect(op.outputs[0], whole, where=_outside(rewrite.region if stays else frozenset()))
        rewrite.stands_for[op.outputs[0].name] = whole
    return travelling


def _outside(region: frozenset[tf.Operation]) -> Callable[[tf.Operation], bool]:
    return lambda op: op not in region


def read(rewrite: Rewrite, shards: list[Shard], dtype: tf.DType, *, narrow: tf.DType | None = None) -> tf.Tensor:
    """The whole variable, brought together from its shards, each cast to `narrow` first if that is given."""
    parts = []
    for shard in shards:
        with tf.device(shard.device):
            part = tf.raw_ops.ReadVariableOp(resource=shard.handle, dtype=dtype)
            parts.append(compress(rewrite, part if narrow in (None, dtype) else tf.cast(part, narrow)))
        rewrite.sent.append(Sent(parts[-1], 1, shard.variable))
    return decompress(rewrite, in_row_order(parts), narrow or dtype)


def in_row_order(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """The whole variable [rows, ...] of all its shards' rows."""
    if len(parts) == 1:
        return parts[0]
    counts = tf.stack([tf.shape(part)[0] for part in parts])
    whole = tf.gather(tf.concat(parts, axis=0), row_order(counts))
    rows = [part.shape.dims[0].value for part in parts]
    whole.set_shape([None if None in rows else sum(rows), *parts[0].shape[1:]])
    return whole


def gather(
    rewrite: Rewrite,
    shards: list[Shard],
    ids: tf.Tensor,
    shape: tuple[int, ...],
    *,
    narrow: tf.DType | None = None,
    is_exact: bool = False,
) -> tf.Tensor:
    """Rows of a sharded variable: each distinct id asks its owner once, then rows are spread to where ids stand.

    With `narrow` they are cast before they travel; `is_exact`: they travel as they are, whatever the plan says of
    compression.
    """
    dtype = narrow or shard_dtype(shards[0])
    distinct, position = tf.unique(tf.reshape(ids, [-1]))
    parts, positions = partition_ids(distinct, shards)
    rows = []
    for shard, part in zip(shards, parts, strict=True):
        with tf.device(shard.device):
            found = tf.raw_ops.ResourceGather(
                resource=shard.handle, indices=shard.places_of(part), dtype=shard_dtype(shard)
            )
            cast = found if narrow is None else tf.cast(found, narrow)
            rows.append(cast if is_exact else compress(rewrite, cast))
        rewrite.sent += [Sent(each, 1, shard.variable) for each in (part, rows[-1])]
    together = rows[0] if len(rows) == 1 else tf.dynamic_stitch(positions, rows)
    together = together if is_exact else decompress(rewrite, together, dtype)
    row_shape = tf.constant(shape[1:], tf.int32)
    result = tf.reshape(tf.gather(together, position), tf.concat([tf.shape(ids), row_shape], axis=0))
    result.set_shape(ids.shape.concatenate(shape[1:]))
    return result


def shard_dtype(shard: Shard) -> tf.DType:
    """The dtype of the values behind a shard's handle."""
    return shard.handle.op.get_attr("dtype")


def partition_ids(ids: tf.Tensor, shards: list[Shard]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """ids [n] by owner, and the positions in `ids` where each owner's stand."""
    if len(shards) == 1:
        return [ids], [tf.range(tf.size(ids))]
    owner = tf.cast(ids % len(shards), tf.int32)
    return (
        tf.dynamic_partition(ids, owner, len(shards)),
        tf.dynamic_partition(tf.range(tf.size(ids)), owner, len(shards)),
    )
