"""Pass: build a synchronous step on parameter servers.

Every rank pushes. The chief takes the aggregates, runs the update on the servers and then releases the other ranks. If
the rows of other variables are on the ranks, each rank also updates its own rows, and takes part in the exchanges that
an update needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.chosen import is_exchange
from parallax_runner.errors import PlanError, Setting
from parallax_runner.graph import edit
from parallax_runner.graph.devices import server_device
from parallax_runner.graph.edit import is_write
from parallax_runner.graph.observers import is_number
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.signals import announce, receive
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
from parallax_runner.routes.ps.state import PsState


@rewrite_pass(reads=["update"], writes=["train_op", "step_ops", "sent", "PsState.updated"])
def update_on_servers(rewrite: Rewrite) -> None:
    """Lets only the chief keep the ops on servers, which all ranks have created under the same names. The other ranks
    wait for the chief instead."""
    update = rewrite.update
    if update is None or not rewrite.plan.by_route(Route.PS):
        return
    _refuse_late_exchanges(update)
    own = _own_roots(rewrite, update)
    roots = sorted(own.union(_asked_for_a_number(rewrite, update, own)), key=lambda op: op.name)
    followed = _needed_without(roots, update.server_ops)
    crossings = [op for op in update.crossings if op in followed]
    if rewrite.is_chief:
        _lead(rewrite, crossings, update)
    else:
        _follow(rewrite, roots, crossings, update)


def _own_roots(rewrite: Rewrite, update: ShardedUpdate) -> set[tf.Operation]:
    """Returns the parts of the train op that a rank other than the chief runs: all parts except ops on servers.

    The result includes the rank's own writes (global_step, dense updates, own rows) and the exchanges that the
    train op reaches only through ops on servers: an exchange needs all ranks.
    """
    copies = update.copies.get(rewrite.train_op)
    needed = edit.ancestors(copies or [rewrite.train_op])
    of_rank = (rewrite.region | update.all_copies) - update.server_ops
    own = {op for op in needed & of_rank if is_write(op)}
    if not copies:
        own.add(rewrite.train_op)
    reached = _needed_without(own, update.server_ops)
    return own | {op for op in needed - reached if is_exchange(op.type)}


def _refuse_late_exchanges(update: ShardedUpdate) -> None:
    """Raises PlanError if the servers' updates need an exchange that waits for an op on a server. The other ranks would
    begin the exchange only when all updates on servers are done."""
    before_updates = edit.ancestors(op for op in update.server_ops if is_write(op))
    exchanges = sorted((op for op in before_updates if is_exchange(op.type)), key=lambda op: op.name)
    if not _awaited_on_servers(exchanges, update):
        return
    late = next(op for op in exchanges if _awaited_on_servers([op], update))
    awaited = _awaited_on_servers([late], update)[0]
    raise PlanError(
        f"an update on servers needs «{late.name}», which all workers compute together, but which waits for "
        f"«{awaited.name}» on a server, by a control dependency"
    ).about(
        Setting.of("comm", update.rewrite.plan.comm),
        remedy="remove this control dependency, or choose comm=sharded, which has no servers",
    )


def _awaited_on_servers(roots: Iterable[tf.Operation], update: ShardedUpdate) -> list[tf.Operation]:
    """Returns the ops of the model on servers for which the roots wait by control dependencies, in the order of their
    names."""
    waiting = _needed_without(roots, update.server_ops)
    awaited = {control for op in waiting for control in op.control_inputs} & update.server_ops
    originals = {copy: op for op, copies in update.copies.items() for copy in copies}
    return sorted({originals.get(op, op) for op in awaited}, key=lambda op: op.name)


def _asked_for_a_number(rewrite: Rewrite, update: ShardedUpdate, roots: set[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields additional ops for ranks other than the chief to run, so that sessions can fetch the ops' results.
    Replaces a sum on servers with its stand-in.

    A session may never fetch these results, so only single numbers are sent for them. Omits ops that would need larger
    values from servers, unless the step itself needs these values.
    """
    travels = _needed_without(roots, update.server_ops)
    large = [op for op in update.crossings if op not in travels and not is_number(op.outputs[0].shape)]
    behind_large = _behind(large, update.server_ops)
    for op in map(rewrite.op, rewrite.single.asked):
        if op in update.copies:
            stand_in = update.values.get(op.outputs[0].name)
            if isinstance(stand_in, tf.Tensor):
                yield stand_in.op
        elif op not in behind_large:
            yield op


def _behind(starts: Iterable[tf.Operation], server_ops: set[tf.Operation]) -> set[tf.Operation]:
    """Returns `starts` and the ops that depend on them. Ignores dependencies through ops on servers."""
    found: set[tf.Operation] = set()
    stack = list(starts)
    while stack:
        op = stack.pop()
        if op in found or op in server_ops:
            continue
        found.add(op)
        stack += [consumer for output in op.outputs for consumer in output.consumers()] + op._control_outputs
    return found


def _needed_without(roots: Iterable[tf.Operation], server_ops: set[tf.Operation]) -> set[tf.Operation]:
    """Returns the ops that the roots need, except ops that only the chief runs."""
    found: set[tf.Operation] = set()
    stack = list(roots)
    while stack:
        op = stack.pop()
        if op in found or op in server_ops:
            continue
        found.add(op)
        stack += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return found


def _lead(rewrite: Rewrite, crossings: list[tf.Operation], update: ShardedUpdate) -> None:
    for number, crossing in enumerate(crossings):
        rewrite.step_ops += announce(rewrite, crossing.outputs[0], name=f"value_{number}")
        rewrite.sent.append(Sent(crossing.outputs[0], rewrite.plan.replicas - 1, update.crossings[crossing]))
    if rewrite.train_op in update.copies:
        rewrite.train_op = tf.group(*update.copies[rewrite.train_op])
    writes = [op for op in update.server_ops if not op.outputs]
    with tf.control_dependencies(writes), tf.device(server_device(0)):
        rewrite.of_route(PsState).updated = tf.no_op("updated")
    with tf.control_dependencies([rewrite.of_route(PsState).updated]):
        rewrite.step_ops += announce(rewrite, tf.constant(True), name="step")


def _follow(rewrite: Rewrite, roots: list[tf.Operation], crossings: list[tf.Operation], update: ShardedUpdate) -> None:
    for number, crossing in enumerate(crossings):
        value = crossing.outputs[0]
        received = receive(rewrite, value, name=f"value_{number}")
        edit.reconnect(value, received, where=lambda consumer: consumer not in update.server_ops)
    step_done = rewrite.of_route(PsState).updated = receive(rewrite, tf.constant(True), name="step").op
    for op in _needed_without(roots, update.server_ops):
        kept = [control for control in op.control_inputs if control not in update.server_ops]
        if len(kept) < len(op.control_inputs):
            edit.set_control_inputs(op, [*kept, step_done])
    rewrite.train_op = tf.group(*roots, step_done)
