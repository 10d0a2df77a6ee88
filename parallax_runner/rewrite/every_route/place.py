"""Pass: place every op on this rank's own worker, except ops on servers."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.rewriting import shared_variables


def place_on_worker(rewrite: Rewrite) -> None:
    """Adds the job and the task to each op's device if servers exist, and keeps the user's device scopes.

    Each rank has its own copy of a variable that is not on servers, so the task in the variable's device scope is
    dropped.
    """
    if not rewrite.worker_device:
        return
    worker = tf.DeviceSpec.from_string(rewrite.worker_device)
    own = _of_own_variables(rewrite)
    for op in rewrite.graph.get_operations():
        wanted = tf.DeviceSpec.from_string(op.device or "")
        if op in own:
            wanted = wanted.replace(job=None, task=None)
        if wanted.job in (None, worker.job) and wanted.task is None:
            op._set_device(worker.make_merged_spec(wanted).to_string())


def _of_own_variables(rewrite: Rewrite) -> set[tf.Operation]:
    """Returns the variables that are not on servers, and the ops that use them."""
    on_servers = shared_variables(rewrite.plan) | rewrite.counters
    handles = [rewrite.op(one.name) for one in rewrite.single.variables if one.name not in on_servers]
    return {op for handle in handles for op in (handle, *handle.outputs[0].consumers())}
