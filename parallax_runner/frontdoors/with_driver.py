"""Rank 0 of a system that has no driver: this process starts the driver beside the worker, and ends as the run does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from parallax_runner.launch import guard

# What a scheduler or a person says to rank 0 is meant for the whole run.
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def run_with_driver(driver_argv: Sequence[str], worker_argv: Sequence[str]) -> int:
    """Runs both to the driver's end; returns its exit status, as a shell has it."""
    driver = _start("parallax_runner", driver_argv)
    worker = _start("parallax_runner.worker", worker_argv)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: driver.send_signal(number))
    status = driver.wait()
    # The run is over; a worker that was never claimed would wait for another driver.
    worker.terminate()
    worker.wait()
    return status if status >= 0 else 128 - status


def _start(module: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a terminal's Ctrl-C reaches this process alone; it ends with this process."""
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(int(signal.SIGTERM))]
    return subprocess.Popen(
        [*guarded, sys.executable, "-m", module, *argv], stdin=subprocess.DEVNULL, start_new_session=True
    )
