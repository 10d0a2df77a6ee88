"""Processes that are stopped before they can say anything: real ones, as the kernel tells of them."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.watch.stopped import StoppedWatch

PTRACE_TRACEME = 0
STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.mark.parametrize(
    ("code", "status", "how"),
    [
        (STOPS, psutil.STATUS_STOPPED, "is stopped (SIGSTOP)"),
        (
            f"import ctypes; ctypes.CDLL(None).ptrace({PTRACE_TRACEME}, 0, None, None); {STOPS}",
            psutil.STATUS_TRACING_STOP,
            "is stopped by a debugger",
        ),
    ],
)
def test_how_a_process_is_stopped(code: str, status: str, how: str) -> None:
    member = Member("server", 0)
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            deadline = time.monotonic() + 60
            while psutil.Process(process.pid).status() != status and time.monotonic() < deadline:
                time.sleep(0.01)
            watch = StoppedWatch(hang_timeout_secs=10, rank_variable="PARALLAX_RANK")
            watch.look([(process.pid, [member])], passed_secs=9)
        finally:
            process.kill()
    assert member.verdict == f"frozen: the process {how} for 9 s (train.hang_timeout_secs=10)"
    assert member.lost_secs is not None
