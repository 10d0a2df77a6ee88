"""Pass: every op that is not on a server runs on this rank's own worker."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Rewrite


def place_on_worker(rewrite: Rewrite) -> None:
    """Adds job and task to each op's device where servers exist, and keeps what the user's scopes say of the rest."""
    if not rewrite.worker_device:
        return
    worker = tf.DeviceSpec.from_string(rewrite.worker_device)
    for op in rewrite.graph.get_operations():
        wanted = tf.DeviceSpec.from_string(op.device or "")
        if wanted.job is None:
            op._set_device(worker.make_merged_spec(wanted).to_string())
