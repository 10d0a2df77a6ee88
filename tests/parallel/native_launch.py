"""Starts scripts with native exchanges under a real mpirun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from parallax_runner.collectives.native.library import library
from parallax_runner.launch.job import thread_environment
from parallax_runner.launch.mpirun.command import ALLOW_ROOT, SHARE_CORES, YIELD_WHEN_IDLE, find_mpirun

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("native_script.py")
SIZES = (2, 3)
END_SECS = 800


def run_sizes(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Runs native_script.py with each number of ranks in SIZES, at the same time on this host. Returns the results of
    each rank, in rank order."""
    library()
    folders = {size: folder / f"{size}_ranks" for size in SIZES}
    with ExitStack() as stack:
        launched = [stack.enter_context(started(SCRIPT, size, own)) for size, own in folders.items()]
        for process in launched:
            _, errors = process.communicate(timeout=END_SECS)
            assert process.returncode == 0, errors[-4000:]
    return {size: [_read(own, rank) for rank in range(size)] for size, own in folders.items()}


def _read(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"rank_{rank}.json").read_text())
    return found


@contextmanager
def started(script: Path, size: int, folder: Path, options: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Runs a script with `folder` as its argument on `size` ranks; ends it if the test fails."""
    folder.mkdir()
    env = dict(os.environ) | thread_environment(1) | ALLOW_ROOT | {"PYTHONPATH": str(ROOT)}
    command = [find_mpirun(), "-np", str(size), *YIELD_WHEN_IDLE, *SHARE_CORES, *options, sys.executable, str(script)]
    with subprocess.Popen(
        [*command, str(folder)], env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
