"""Pass: build a synchronous parameter-server step that can complete without `comm.ps.backup_workers` of the workers."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError, Setting
from parallax_runner.graph import edit
from parallax_runner.graph.edit import is_write
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
from parallax_runner.routes.ps.accumulate import accumulate_on_servers
from parallax_runner.routes.ps.admission import ask_for_admission, count_step
from parallax_runner.routes.ps.asynchronous import shared_by_all
from parallax_runner.routes.ps.mutex import hold_mutex, make_mutex, release_mutex


@rewrite_pass(
    reads=["gradients", "placements", "counters"],
    writes=["train_op", "step_ops", "sent", "initializers", "coordination", "PsState.pushes", "stands_for"],
)
def update_with_backup(rewrite: Rewrite) -> None:
    """Makes the admitted replicas push their gradients, and makes the last admitted replica run the update.

    All replicas have the same ops. Only the leader takes the sums and then requests the mutex for the update. The ops
    of the update that read or write shared variables wait for the mutex, so these ops are dead on all other replicas.
    """
    if not rewrite.plan.options.backup_workers or not rewrite.plan.by_route(Route.PS):
        return
    rewrite.coordination.mutex = make_mutex(rewrite)
    ask_for_admission(rewrite, rewrite.coordination.mutex)
    update = ShardedUpdate(rewrite=rewrite, values=dict(accumulate_on_servers(rewrite)))
    update.visit_region()
    if rewrite.train_op in update.copies:
        rewrite.train_op = tf.group(*update.copies[rewrite.train_op])
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops])
    guarded = shared_by_all(rewrite, update, step)
    held = hold_mutex(rewrite.coordination.mutex, guarded, step)
    _refuse_own_updates(rewrite, step - guarded, held)
    rewrite.step_ops.append(release_mutex(held, [*guarded, *count_step(rewrite, after=guarded)]))


def _refuse_own_updates(rewrite: Rewrite, ops: set[tf.Operation], held: tf.Tensor) -> None:
    """Raises PlanError if each worker has its own copy of a variable, but only the leader would write to its copy."""
    for op in sorted(ops & rewrite.region, key=lambda op: op.name):
        if is_write(op) and held.op in edit.ancestors([op]):
            raise PlanError(
                f"«{op.name}» updates each worker's "
                "own copy of a variable after the update on the servers, which only one worker runs. Run the op before "
                "the update, or set comm.ps.backup_workers=0"
            ).about(Setting.of("comm.ps.backup_workers", rewrite.plan.options.backup_workers))
