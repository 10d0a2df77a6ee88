"""The first process of each pod: `python -m parallax_runner.launch.launchers.kubernetes.pod --driver=HOST --workers=N
--leave-secs=N [--role=ROLE] -- SETTINGS`.

It runs the command that a person would run under `cluster=manual`: the driver with the settings, or a worker or server
that stands by at the driver's address. A worker or server whose driver has ended stands by again, for the pod that
replaces the driver's pod. The end of the job ends these pods. Only the driver's pod ends on its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from parallax_runner.launch.launchers.kubernetes.names import (
    ADDRESS_VARIABLE,
    DRIVER,
    INDEX_VARIABLE,
    PORT,
    ROLES,
    SERVER,
    WORKER,
)

AGAIN_SECS = 1.0


class FirstProcess:
    """Runs commands in a pod, in which it may be process 1: passes SIGTERM on, and collects the exit statuses of
    processes that have lost their parents."""

    def __init__(self) -> None:
        self._is_ending = threading.Event()
        self._pid: int | None = None
        # Signals that the command has not got yet. A second SIGTERM would end it without a checkpoint, so each signal
        # is passed on once.
        self._signals: deque[int] = deque()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def run(self, argv: Sequence[str]) -> int:
        """Runs a command and returns its exit status, as a shell shows it."""
        child = subprocess.Popen(argv)
        self._pid = child.pid
        self._pass_on()
        ended, status = os.wait()
        while ended != child.pid:
            ended, status = os.wait()
        self._pid = None
        child.returncode = code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def run_again_and_again(self, argv: Sequence[str]) -> int:
        """Runs a command again whenever it ends, until SIGTERM. Returns its last exit status."""
        while True:
            status = self.run(argv)
            if self._is_ending.wait(AGAIN_SECS):
                return status

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._is_ending.set()
        self._signals.append(number)
        self._pass_on()

    def _pass_on(self) -> None:
        """Sends the signals to the command, unless none runs. A signal may arrive between any two lines."""
        with suppress(IndexError, ProcessLookupError):
            while self._pid is not None:
                os.kill(self._pid, self._signals.popleft())


def role_of(index: int, workers: int) -> str:
    """Returns the role of a pod of an Indexed Job: first the driver, then the workers, then the servers."""
    if index == 0:
        return DRIVER
    return WORKER if index <= workers else SERVER


def command_of(role: str, driver: str, settings: Sequence[str], address: str | None, leave_secs: int) -> list[str]:
    """Returns the command of a pod. `address` is the pod's own address, or None to find it. `leave_secs` is how long
    the driver may save after SIGTERM."""
    if role == DRIVER:
        return [sys.executable, "-m", "parallax_runner", *settings]
    own = [] if address is None else [f"--address={address}"]
    # The pod waits as long as the job lasts: the driver's pod may have no node yet.
    waiting = [f"--rendezvous=tcp://{driver}:{PORT}", "--timeout-secs=inf", f"--leave-secs={leave_secs}", *own]
    return [sys.executable, "-m", f"parallax_runner.{role}", *waiting]


def main(argv: Sequence[str]) -> int:
    """Runs the pod's command and returns the exit status of the pod."""
    parser = argparse.ArgumentParser(prog="pod", allow_abbrev=False)
    parser.add_argument("--role", choices=ROLES)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--leave-secs", type=int, required=True)
    parser.add_argument("settings", nargs="*")
    asked = parser.parse_args(argv)
    role = asked.role or role_of(int(os.environ[INDEX_VARIABLE]), asked.workers)
    command = command_of(role, asked.driver, asked.settings, os.environ.get(ADDRESS_VARIABLE), asked.leave_secs)
    first = FirstProcess()
    return first.run(command) if role == DRIVER else first.run_again_and_again(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
