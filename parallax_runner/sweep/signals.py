"""Handles Ctrl-C, SIGTERM and SIGHUP during a sweep: running jobs shut down cleanly, and no new job starts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from parallax_runner.launch.guard import end_with_parent
from parallax_runner.launch.interrupts import SAME_PRESS_SECS, ending_signals
from parallax_runner.sweep.ledger import Ledger


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def handled(handler: Any, *more: signal.Signals) -> Iterator[None]:
    """Installs `handler` for the signals that end a run, and for `more`. Does nothing outside the main thread, because
    Python cannot install signal handlers there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (*ending_signals(), *more)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def ends_job(*more: signal.Signals) -> contextlib.AbstractContextManager[None]:
    """Turns a signal into SystemExit while the job does not handle the signal itself."""
    return handled(_exit, *more)


@contextmanager
def one_of_joblibs(ledger: Ledger) -> Iterator[None]:
    """Prepares a joblib process for running a job. Does nothing in the driver's own process.

    If the driver is killed, the kernel sends SIGTERM to this process. The job then shuts down cleanly and the process
    exits. From the end of the block until the next job, the process ignores all signals that end a run, as long as the
    driver is alive. The reason is that a Ctrl-C on the terminal reaches all processes, and if Ctrl-C ended an idle
    process, joblib would kill the other processes. Joblib itself ends idle processes without signals.
    """
    driver_pid = ledger.read().driver_pid
    if os.getpid() == driver_pid or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave_if_alone(*_: object) -> None:
        if os.getppid() != driver_pid:
            # The process does not raise an exception, because joblib would catch the exception and wait for more work
            # while other processes are alive.
            os._exit(128 + signal.SIGTERM)

    end_with_parent(signal.SIGTERM, driver_pid)
    yield
    for number in ending_signals():
        signal.signal(number, leave_if_alone)
    leave_if_alone()


class Noted:
    """The signal handler of a sweep whose jobs run in Slurm. The first signal is only recorded; the loop that waits for
    the jobs then cancels them. A second signal ends the sweep immediately."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._first_secs = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._first_secs = number, now
        elif number != signal.SIGHUP and now - self._first_secs > SAME_PRESS_SECS:
            _exit(number, frame)


class Forwarder:
    """Forwards signals to jobs in other processes, and lets the sweep continue until those jobs have ended.

    If no job is running, or on a second signal, the sweep ends immediately and joblib kills the remaining processes.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._first_secs: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        now = time.monotonic()
        if self._first_secs is not None:
            # As in a single run, a SIGHUP is never treated as the second signal.
            if number != signal.SIGHUP and now - self._first_secs > SAME_PRESS_SECS:
                _exit(number, frame)
            return
        self._first_secs = now
        # Forward the signal before writing to a disk that may be busy with checkpoints. A job that already got the
        # signal from the terminal would treat a late copy as a second Ctrl-C.
        told = self._pass_on(number, set())
        # Then forward the signal to jobs that were started in the meantime. Once the stop is in the ledger, no other
        # job starts.
        self._ledger.append("stop", exit_status=128 + number)
        told |= self._pass_on(number, told)
        if not told:
            _exit(number, frame)

    def _pass_on(self, number: int, told: set[int]) -> set[int]:
        jobs = self._ledger.read().running(besides_pid=os.getpid())
        running = {job.pid for job in jobs if job.is_here and job.pid} - told
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return running
