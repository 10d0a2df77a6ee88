"""Passes for asynchronous training: each replica applies its own gradients without waiting for other replicas."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import FULL_ROWS, Ids, Rows
from parallax_runner.analysis.update_region.row_list import GradientList
from parallax_runner.graph import edit
from parallax_runner.graph.devices import server_device
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.exchange.compression import compress, decompress
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue
from parallax_runner.routes.ps.casts import before_widening
from parallax_runner.routes.ps.mutex import hold_mutex, make_mutex, release_mutex
from parallax_runner.routes.ps.on_servers import OnServers, on_servers, split_by_owner
from parallax_runner.routes.ps.staleness import count_round


@rewrite_pass(writes=["counters"])
def share_counters(rewrite: Rewrite) -> None:
    """Moves variables that count updates (global_step, Adam's beta powers) to server 0. All replicas share these
    variables."""
    for name in rewrite.plan.counters:
        handle = rewrite.op(name)
        handle._set_attr("shared_name", tf.AttrValue(s=f"counter/{name}".encode()))
        for op in (handle, *handle.outputs[0].consumers()):
            op._set_device(server_device(0))
        rewrite.counters.add(name)


@rewrite_pass(
    reads=["gradients", "placements", "counters"],
    writes=["train_op", "step_ops", "sent", "initializers", "coordination", "stands_for"],
)
def update_at_once(rewrite: Rewrite) -> None:
    """Pushes this replica's gradients straight into the update ops on the servers, while the replica holds the
    mutex."""
    plan = rewrite.plan
    if plan.options.sync or not plan.by_route(Route.PS):
        return
    update = ShardedUpdate(rewrite=rewrite, values=_push(rewrite))
    update.visit_region()
    update.visit_observers()
    if rewrite.train_op in update.copies:
        rewrite.train_op = tf.group(*update.copies[rewrite.train_op])
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops])
    guarded = shared_by_all(rewrite, update, step)
    rewrite.coordination.mutex = make_mutex(rewrite)
    held = hold_mutex(rewrite.coordination.mutex, guarded, step)
    with tf.name_scope("push/"):
        counted = _observe_staleness(rewrite, held)
        rewrite.step_ops.append(release_mutex(held, [*guarded, *counted, *count_round(rewrite, after=guarded)]))


def _push(rewrite: Rewrite) -> dict[str, ShardedValue]:
    """Sends this replica's gradients to the servers that own the rows."""
    pushed: dict[str, ShardedValue] = {}
    for gradient in rewrite.gradients_by(Route.PS):
        placement = on_servers(rewrite, gradient.variables[0])
        with tf.name_scope(f"push/{gradient.name}/"):
            if gradient.indices is None:
                narrow = before_widening(rewrite, gradient.values)
                wide = []
                for shard in placement.shards:
                    part = _sent(rewrite, shard.take(narrow) if placement.is_cut else narrow, placement, shard)
                    with tf.device(shard.device):
                        wide.append(tf.cast(part, gradient.values.dtype))
                pushed[gradient.values.name] = ShardedValue(tuple(wide), placement, FULL_ROWS)
                continue
            values, ids = [], []
            parts = split_by_owner(gradient.values, gradient.indices, len(placement.shards))
            for shard, (rows, part) in zip(placement.shards, parts, strict=True):
                values.append(_sent(rewrite, rows, placement, shard))
                ids.append(_sent(rewrite, shard.places_of(part), placement, shard))
        rows_of = GradientList(gradient.name)
        pushed[gradient.values.name] = ShardedValue(tuple(values), placement, Rows(rows_of))
        pushed[gradient.indices.name] = ShardedValue(tuple(ids), placement, Ids(rows_of))
    return pushed


def _sent(rewrite: Rewrite, tensor: tf.Tensor, placement: OnServers, shard: Shard) -> tf.Tensor:
    travelling = compress(rewrite, tensor)
    rewrite.sent.append(Sent(travelling, 1, placement.variable))
    with tf.device(shard.device):
        return decompress(rewrite, tf.identity(travelling), tensor.dtype)


def shared_by_all(rewrite: Rewrite, update: ShardedUpdate, step: set[tf.Operation]) -> set[tf.Operation]:
    """Returns the ops of the update that use variables on servers. These ops may run only while this replica holds the
    mutex."""
    shared = {shard.handle.op for placement in rewrite.placements.values() for shard in placement.shards}
    shared |= {rewrite.op(name) for name in rewrite.counters}
    own = (rewrite.region | update.server_ops) & step
    return {op for op in own if any(handle in shared for handle in edit.handle_of(op))}


def _observe_staleness(rewrite: Rewrite, held: tf.Tensor) -> list[tf.Operation]:
    """Sets the staleness: the number of pushes by other replicas between the start of this step and this replica's
    push."""
    with tf.device(server_device(0)):
        name = f"pushes/{rewrite.plan.fingerprint[:16]}"
        pushes = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)
        rewrite.initializers.shared.append(tf.raw_ops.AssignVariableOp(resource=pushes, value=tf.constant(0, tf.int64)))
        at_pull = tf.raw_ops.ReadVariableOp(resource=pushes, dtype=tf.int64)
        with tf.control_dependencies([held.op, at_pull.op]):
            at_push = tf.raw_ops.ReadVariableOp(resource=pushes, dtype=tf.int64)
        rewrite.coordination.staleness = at_push - at_pull
        with tf.control_dependencies([at_push.op, rewrite.coordination.staleness.op]):
            counted = tf.raw_ops.AssignAddVariableOp(resource=pushes, value=tf.constant(1, tf.int64))
    rewrite.step_ops.append(counted)
    return [counted]
