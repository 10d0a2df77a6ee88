"""A rank that exchanges through files: `python -m tests.parallel.file_backend_worker RUN_DIR`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from parallax_runner.collectives import chosen
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from tests.parallel import matrix_worker
from tests.parallel.file_backend import Files

# An exchange through files occupies a thread of TensorFlow until all ranks have come.
THREADS = 16


def work(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Runs the cases of `cases.json`."""
    ranks = json.loads((run_dir / "cases.json").read_text())[0]["ranks"]
    chosen.choose(Files(run_dir / "exchanges", rank, ranks))
    matrix_worker.THREADS = THREADS
    matrix_worker.run_cases(run_dir, rank, client)


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), work)
