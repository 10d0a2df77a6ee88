"""Pass: put variables of the ps route on servers, sharded by rows, and read them from there.

Row i of a variable with n shards is in shard i mod n. Words are often numbered by frequency, so contiguous ranges would
put the rows of all frequent words on one server (docs/design/0031-rows-modulo-shards.md).

Variables are split by replacing their handles, without rebuilding the model. Therefore, any variable can be split,
whether it was created by `get_variable`, `tf.Variable` or a layer. Row i stays row i, and initial values do not depend
on the number of shards (docs/design/0004-partitioning.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.immovable import SERVER_READS
from parallax_runner.graph import edit
from parallax_runner.graph.devices import server_device
from parallax_runner.plan.plan import Route, VariablePlan
from parallax_runner.rewrite.initial_values.blocks import assign_initial
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.ps.casts import connect_casts, narrow_dtype
from parallax_runner.routes.ps.on_servers import OnServers, gather, read, shard_handle
from parallax_runner.routes.ps.state import PsState


@rewrite_pass(writes=["placements", "initializers", "sent", "stands_for", "PsState.pulled"])
def shard_variables(rewrite: Rewrite) -> None:
    """Creates the shards of every variable on the ps route and of its slots, and redirects their reads."""
    variables = {variable.name: variable for variable in rewrite.single.variables}
    for planned in rewrite.plan.by_route(Route.PS):
        for name in (planned.name, *planned.slots):
            placement = _make_shards(rewrite, name, planned)
            rewrite.placements[rewrite.op(name).name] = placement
            value = rewrite.op(variables[name].initializer).inputs[1]
            rewrite.initializers.shared += [
                assign_initial(rewrite.initializers, shard, value, is_cut=placement.is_cut)
                for shard in placement.shards
            ]
            _redirect_reads(rewrite, placement, name, variables[name].shape)


def _make_shards(rewrite: Rewrite, name: str, planned: VariablePlan) -> OnServers:
    dtype = rewrite.op(name).get_attr("dtype")
    shards = []
    for number, shard in enumerate(planned.shards):
        with rewrite.graph.as_default():
            handle = shard_handle(name, dtype, planned.shape, shard, op_name=f"{name}/shard_{number}")
        shards.append(Shard(handle, shard.offset, shard.rows, device=server_device(shard.server), step=shard.step))
    return OnServers(planned.name, tuple(shards))


def _redirect_reads(rewrite: Rewrite, placement: OnServers, name: str, shape: tuple[int, ...]) -> None:
    """Redirects the reads of a variable or slot."""
    handle = rewrite.op(name).outputs[0]
    looks_up_there = rewrite.plan.options.ps.boundary_between_workers_and_servers
    replaced = set() if looks_up_there else _look_up_on_worker(rewrite, handle)
    # Reads without control inputs share one value, which is sent once.
    plain = []
    for op in sorted(set(handle.consumers()) - replaced, key=lambda op: op.name):
        if op.type == "ReadVariableOp" and not op.control_inputs:
            plain.append(op)
        elif op.type in SERVER_READS:
            with tf.control_dependencies(op.control_inputs), tf.name_scope(f"shards/{op.name}/"):
                _redirect(rewrite, [op], functools.partial(_answer, rewrite, op, placement, shape))
    if plain:
        with tf.name_scope(f"shards/{plain[0].name}/"):
            pulled = _redirect(rewrite, plain, functools.partial(_answer, rewrite, plain[0], placement, shape))
        rewrite.of_route(PsState).pulled[name] = pulled


def _look_up_on_worker(rewrite: Rewrite, handle: tf.Tensor) -> set[tf.Operation]:
    """Makes lookups outside the update region gather rows from a read of the whole variable. Returns these lookups."""
    lookups = {op for op in handle.consumers() if op.type == "ResourceGather" and op not in rewrite.region}
    for op in sorted(lookups, key=lambda op: op.name):
        with tf.control_dependencies(op.control_inputs), tf.name_scope(f"whole/{op.name}/"):
            whole = tf.raw_ops.ReadVariableOp(resource=handle, dtype=op.get_attr("dtype"))
            rows = tf.gather(whole, op.inputs[1])
        edit.reconnect(op.outputs[0], rows, where=lambda _: True)
        rewrite.stands_for[op.outputs[0].name] = rows
    return lookups


def _answer(
    rewrite: Rewrite, op: tf.Operation, placement: OnServers, shape: tuple[int, ...], narrow: tf.DType | None
) -> tf.Tensor:
    """Returns the result of an op that reads the variable, computed from the shards and cast to `narrow` on their
    servers."""
    if op.type == "ResourceGather":
        return gather(rewrite, placement, op.inputs[1], shape, narrow=narrow)
    if op.type == "VariableShape":
        return tf.constant(shape, op.outputs[0].dtype)
    if op.type == "VarIsInitializedOp":
        # This op exists only if another variable is initialized from this variable. If its result is False, the other
        # variable uses this variable's initial value, not its current value.
        return tf.constant(False)
    return read(rewrite, placement, narrow=narrow)


def _redirect(rewrite: Rewrite, ops: list[tf.Operation], answer: Callable[[tf.DType | None], tf.Tensor]) -> tf.Tensor:
    """Makes all readers of `ops` read the result of `answer`. Returns the tensor that is sent for these ops in a step.

    `answer` computes the result of a read from the shards. The shards' servers cast the result to the given dtype,
    unless it is None.
    """
    narrow = narrow_dtype(rewrite, [op.outputs[0] for op in ops])
    travelling = answer(narrow)
    whole = travelling if narrow is None else answer(None)
    for op in ops:
        if narrow is not None:
            connect_casts(rewrite, op.outputs[0], travelling)
        # In the update region, only the chief reads the variable, between the aggregation and the update
        # (sharded_update.py).
        stays = op in rewrite.region and op.type in ("ReadVariableOp", "ResourceGather")
        edit.reconnect(op.outputs[0], whole, where=_outside(rewrite.region if stays else frozenset()))
        rewrite.stands_for[op.outputs[0].name] = whole
    return travelling


def _outside(region: frozenset[tf.Operation]) -> Callable[[tf.Operation], bool]:
    return lambda op: op not in region
