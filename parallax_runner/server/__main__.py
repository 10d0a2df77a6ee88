"""One server: `python -m parallax_runner.server RUN_DIR INDEX`. It stores variables and runs the ops that are placed on
it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from parallax_runner.config import frozen
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.launch.proof import claim
from parallax_runner.process.stage_times import log_to_stderr, process_age_secs, stage, tell
from parallax_runner.process.tensorflow_import import import_servers_part


def serve(run_dir: Path, index: int, client: ControlClient) -> None:
    """Serves until the driver asks this server to exit, when all workers are done."""
    log_to_stderr()
    tell("start of Python", process_age_secs())
    import_servers_part()
    client.prove(claim(run_dir, None))
    from parallax_runner.train.cluster import join_cluster

    config = frozen.load(run_dir)
    with stage("join the cluster"):
        join_cluster(
            client,
            role="server",
            index=index,
            threads=config.cluster.threads_per_worker,
            protocol=config.comm.ps.protocol,
        )
    client.doing = Activity(Kind.SERVING)
    client.wait_for_stop()
    client.done()


if __name__ == "__main__":
    if wire.CONTROL_ADDRESS not in os.environ:  # a user or a scheduler, not a driver, started this process
        from parallax_runner.frontdoors.entry import start

        sys.exit(start("server", sys.argv[1:]))
    run_child("server", int(sys.argv[2]), Path(sys.argv[1]), serve)
