"""Processes beside this one: the driver, where a system has none, and several servers that one command stands for."""

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
    """Runs rank 0's driver and worker to the driver's end; returns its exit status, as a shell has it."""
    driver = start_beside("parallax_runner", driver_argv)
    worker = start_beside("parallax_runner.worker", worker_argv)
    _pass_signals_on([driver])
    status = driver.wait()
    # The run is over; a worker that was never claimed would wait for another driver.
    worker.terminate()
    worker.wait()
    return as_shell_has_it(status)


def run_several(module: str, argv: Sequence[str], count: int) -> int:
    """Runs `count` of a module to their ends; returns the first exit status that is not 0."""
    processes = [start_beside(module, argv) for _ in range(count)]
    _pass_signals_on(processes)
    return next(filter(None, [as_shell_has_it(process.wait()) for process in processes]), 0)


def start_beside(module: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a terminal's Ctrl-C reaches this process alone; it ends with this process."""
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(int(signal.SIGTERM))]
    return subprocess.Popen(
        [*guarded, sys.executable, "-m", module, *argv], stdin=subprocess.DEVNULL, start_new_session=True
    )


def as_shell_has_it(status: int) -> int:
    """An exit status of subprocess: 128 and the signal's number where a signal ended the process."""
    return status if status >= 0 else 128 - status


def _pass_signals_on(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    def pass_on(number: int, _: object) -> None:
        for process in processes:
            process.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
