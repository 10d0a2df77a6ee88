"""Finds and terminates every descendant process of this run, so that no process is left behind."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from subprocess import Popen

import psutil

log = logging.getLogger(__name__)

TERM_SECS = 3.0
KILL_SECS = 2.0
_POLL_SECS = 0.05


def find_family(leaders: Iterable[int], secret: str) -> list[psutil.Process]:
    """Returns the living processes that are in a session led by a pid in `leaders`, or that have the run's secret in
    their environment.

    mpirun gives each rank its own process group, so process groups do not identify a run, but sessions do. Processes
    that started a new session are identified by their environment.
    """
    sessions = set(leaders)
    return [process for process in psutil.process_iter() if _belongs(process, sessions, secret)]


def end_family(children: Iterable[Popen[bytes]], secret: str, hurry: Callable[[], bool] = lambda: False) -> None:
    """Terminates the children and all their descendants. Sends SIGTERM first, and SIGKILL after 3 s or as soon as
    `hurry()` returns True. Returns when all these processes have exited, or at the latest 2 s after the first SIGKILL.
    A stopped process cannot handle SIGTERM, so it receives SIGKILL at once."""
    children = list(children)
    pids = [child.pid for child in children]
    for number, patience_secs in ((signal.SIGTERM, TERM_SECS), (signal.SIGKILL, KILL_SECS)):
        signalled: set[psutil.Process] = set()
        deadline = time.monotonic() + patience_secs
        while time.monotonic() < deadline and not (number == signal.SIGTERM and hurry()):
            # List the processes again each time, because a process may have forked while the previous list was created.
            family = find_family(pids, secret)
            if not family and _have_exited(children):
                return
            for process in set(family) - signalled:
                _signal(process, number)
            signalled |= set(family)
            time.sleep(_POLL_SECS)
    log.error("still running after SIGKILL: %s", _pids(signalled) or "unknown")


def _have_exited(children: Iterable[Popen[bytes]]) -> bool:
    return all(child.poll() is not None for child in children)


def _pids(processes: Iterable[psutil.Process]) -> str:
    return ", ".join(f"pid {process.pid}" for process in processes)


def _belongs(process: psutil.Process, sessions: set[int], secret: str) -> bool:
    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getsid(process.pid) in sessions or secret in process.environ().values()
    except (psutil.Error, OSError):
        # The process has ended, or belongs to another user.
        return False


def _signal(process: psutil.Process, number: int) -> None:
    try:
        stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        process.send_signal(signal.SIGKILL if stopped else number)
    except psutil.Error:
        # The process has ended.
        return
