"""A rank that exchanges through Horovod: `python -m tests.parallel.horovod_backend_worker RUN_DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from parallax_runner.collectives.chosen import BACKENDS, choose
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from tests.parallel import matrix_worker


def work(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Runs the cases of `cases.json`."""
    choose(BACKENDS["horovod"])
    matrix_worker.run_cases(run_dir, rank, client)


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), work)
