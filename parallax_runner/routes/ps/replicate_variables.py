"""Pass: give each replica a copy of the dense variables that are on servers, and make the replica read the copy.

At the end of its step, a worker refreshes the copies of all its replicas with one read from the servers.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.plan.plan import Route, VariablePlan
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.ps.on_servers import on_servers, read
from parallax_runner.routes.ps.state import PsState


@rewrite_pass(
    reads=["placements", "PsState.pulled", "PsState.updated"], writes=["initializers", "step_ops", "sent", "stands_for"]
)
def replicate_dense_variables(rewrite: Rewrite) -> None:
    """Gives each replica its own copy of every dense variable that is on a server. The original Parallax calls such a
    copy a «mirror»."""
    # Runs only for the last replica. The first replica's read serves all replicas, and all earlier passes must have run
    # for all replicas.
    if not rewrite.plan.options.ps.replicate_variables or rewrite is not rewrite.siblings[-1]:
        return
    for planned in rewrite.plan.by_route(Route.PS):
        is_pulled = all(planned.name in each.of_route(PsState).pulled for each in rewrite.siblings)
        if planned.gradient == "dense" and is_pulled:
            _replicate(rewrite.siblings, planned)


def _replicate(replicas: list[Rewrite], planned: VariablePlan) -> None:
    first = replicas[0]
    updated = first.of_route(PsState).updated
    assert updated is not None
    with tf.device(first.worker_device), tf.name_scope(f"copies/{planned.name}/"):
        initial = _read_servers(first, planned)
        with tf.control_dependencies([updated]):
            fresh = _read_servers(first, planned)
    for replica in replicas:
        handle, read = _read_copy(replica, planned)
        with tf.device(handle.device):
            replica.initializers.copies.append(tf.raw_ops.AssignVariableOp(resource=handle, value=initial))
            # A step reads the values that the copy had when the step began.
            with tf.control_dependencies([read.op]):
                replica.step_ops.append(tf.raw_ops.AssignVariableOp(resource=handle, value=fresh))


def _read_servers(rewrite: Rewrite, planned: VariablePlan) -> tf.Tensor:
    return read(rewrite, on_servers(rewrite, planned.name), narrow=rewrite.of_route(PsState).pulled[planned.name].dtype)


def _read_copy(replica: Rewrite, planned: VariablePlan) -> tuple[tf.Tensor, tf.Tensor]:
    """Creates a replica's copy, and redirects all readers of the variable to this copy. Returns the handle of the copy,
    and the tensor that reads the copy."""
    pulled = replica.of_route(PsState).pulled[planned.name]
    name = f"{replica.prefix}{planned.name}/copy"
    with tf.device(replica.op(planned.name).device):
        handle = tf.raw_ops.VarHandleOp(dtype=pulled.dtype, shape=planned.shape, shared_name=name, name=name)
        own = tf.raw_ops.ReadVariableOp(resource=handle, dtype=pulled.dtype)
    edit.reconnect(pulled, own, where=lambda _: True)
    for fetched, tensor in replica.stands_for.items():
        if tensor is pulled:
            replica.stands_for[fetched] = own
    return handle, own
