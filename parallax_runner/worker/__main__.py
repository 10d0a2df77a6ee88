"""One rank. A launcher runs `python -m parallax_runner.worker RUN_DIR`. If no driver started this process, the process
stands by for a driver."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from parallax_runner.launch.child import run_child
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.process.stage_times import log_to_stderr, process_age_secs, report_to, stage, tell
from parallax_runner.process.tensorflow_import import import_tensorflow, load_cusolver
from parallax_runner.shipment.shipment_folder import needs_script


def work(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Loads the graph, rewrites it for this rank, trains, and reports the outcome to the driver. If the run needs its
    script, runs that script instead."""
    log_to_stderr()
    tell("start of Python", process_age_secs())
    if rank == 0:
        report_to(lambda name: client.report("stage", name=name))
    load_cusolver()
    if needs_script(run_dir):
        from parallax_runner.worker.script import run_script

        run_script(run_dir, rank, client)
        return
    import_tensorflow()
    with stage("import the stages"):
        from parallax_runner.worker.rank import run_rank

    client.done(**run_rank(run_dir, rank, client))


if __name__ == "__main__":
    if wire.CONTROL_ADDRESS not in os.environ:  # a user or a scheduler, not a driver, started this process
        from parallax_runner.frontdoors.entry import start

        sys.exit(start("worker", sys.argv[1:]))
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), work)
