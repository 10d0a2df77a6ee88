"""Ctrl-C, SIGTERM and SIGHUP during a sweep: the running jobs end well, and no other is started."""

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
    """Has the signals that end a run, and `more`, go to `handler`; outside the main thread Python allows none."""
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
    """A signal is an exception, where the job does not handle it by itself."""
    return handled(_exit, *more)


@contextmanager
def one_of_joblibs(ledger: Ledger) -> Iterator[None]:
    """For a job that does not run in the process that was started, but in one of joblib's.

    If that one is killed, the kernel sends this one SIGTERM: the job ends well, and then this process. Else all
    signals are ignored after the block, until the next job: a Ctrl-C on the terminal goes to all processes, one that
    dies of it idle makes joblib kill the others, and joblib ends them without signals.
    """
    driver_pid = ledger.read().driver_pid
    if os.getpid() == driver_pid or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave_if_alone(*_: object) -> None:
        if os.getppid() != driver_pid:
            # Not an exception: joblib would catch it and wait for more work, which its other processes seem to promise.
            os._exit(128 + signal.SIGTERM)

    end_with_parent(signal.SIGTERM, driver_pid)
    yield
    for number in ending_signals():
        signal.signal(number, leave_if_alone)
    leave_if_alone()


class Noted:
    """For a sweep whose jobs Slurm runs: the first signal is only noted, and whoever waits for the jobs ends them. A
    second one ends the sweep at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._first_secs = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._first_secs = number, now
        elif number != signal.SIGHUP and now - self._first_secs > SAME_PRESS_SECS:
            _exit(number, frame)


class Forwarder:
    """Passes signals to the jobs that other processes run, and lets the sweep go on until they have ended.

    With none running, or on a second signal, the sweep ends at once, and joblib kills what is left.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._first_secs: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        now = time.monotonic()
        if self._first_secs is not None:
            # As for one run, a SIGHUP is never the second one.
            if number != signal.SIGHUP and now - self._first_secs > SAME_PRESS_SECS:
                _exit(number, frame)
            return
        self._first_secs = now
        # At once, and not after a disk that is busy with their checkpoints: a job that the terminal has told already
        # would take what comes late for a second Ctrl-C.
        told = self._pass_on(number, set())
        # Then those that started meanwhile: each writes that down first, then looks whether the sweep ends.
        self._ledger.append("stop", exit_status=128 + number)
        told |= self._pass_on(number, told)
        if not told:
            _exit(number, frame)

    def _pass_on(self, number: int, told: set[int]) -> set[int]:
        running = {job.pid for job in self._ledger.read().running(besides_pid=os.getpid())} - told
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return running
