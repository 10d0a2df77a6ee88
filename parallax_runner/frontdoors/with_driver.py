"""Starts additional processes: a driver, for a system that does not start one, or several servers from one command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from parallax_runner.launch import guard

# Signals that a scheduler or a user sends to rank 0. They are meant for the whole run.
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def run_with_driver(driver_argv: Sequence[str], worker_argv: Sequence[str]) -> int:
    """Runs rank 0's driver and worker until the driver ends. Returns the driver's exit status as a shell would report
    it."""
    driver = start_beside("parallax_runner", driver_argv)
    worker = start_beside("parallax_runner.worker", worker_argv)
    _pass_signals_on([driver])
    status = driver.wait()
    # The run is over, but a worker that was never claimed would still wait for another driver.
    worker.terminate()
    worker.wait()
    return as_shell_has_it(status)


def run_several(module: str, argv: Sequence[str], count: int) -> int:
    """Runs `count` processes of a module until they end. Returns the first exit status that is not 0, or 0."""
    processes = [start_beside(module, argv) for _ in range(count)]
    _pass_signals_on(processes)
    return next(filter(None, [as_shell_has_it(process.wait()) for process in processes]), 0)


def start_beside(module: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a module in its own session, so that a terminal's Ctrl-C reaches only this process. The new process ends
    when this process ends, but not when the calling thread ends."""
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(int(signal.SIGTERM))]
    started: Future[subprocess.Popen[bytes]] = Future()

    def start() -> None:
        try:
            process = subprocess.Popen(
                [*guarded, sys.executable, "-m", module, *argv], stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        # The kernel ends the process when the thread that started it ends, so this thread must not end first.
        process.wait()

    threading.Thread(target=start, name=module, daemon=True).start()
    return started.result()


def as_shell_has_it(status: int) -> int:
    """Converts an exit status from `subprocess` to the exit status that a shell would report. If a signal ended the
    process, this is 128 plus the signal number."""
    return status if status >= 0 else 128 - status


def _pass_signals_on(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    def pass_on(number: int, _: object) -> None:
        for process in processes:
            process.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
