"""Detects processes that are alive but send nothing, because they are stopped or their memory is being swapped.

Each child process sends a heartbeat every few seconds from a separate thread, even while its main thread waits. Silence
is measured only while the driver is awake, because a stopped driver cannot receive heartbeats.
"""

import socket
import time
from collections.abc import Iterable

import psutil

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.control.activity import STARTING

# The fraction of the timeout after which a silent process is treated as frozen. The rest of the timeout is for
# detecting the freeze and terminating all processes.
SILENCE_SHARE = 0.8
ALIVE_SHARE = 0.2
MAX_ALIVE_SECS = 2.0
STACKS_SHARE = 0.4
# While a process loads TensorFlow from a cold disk cache, its other Python threads may not run. A starting process is
# treated as frozen only after this time, unless the kernel reports that it is stopped.
STARTING_SILENCE_SECS = 48.0
# A driver's machine can be slow for a while, and a child that gives up ends the run.
LEAST_DRIVER_SILENT_SECS = 60.0
# If more time passes between two ticks of the clock, the driver itself was paused.
MAX_TICK_SECS = 1.0
# The kernel's states for a stopped process, in words.
STOPPED = {
    psutil.STATUS_STOPPED: "is stopped (SIGSTOP)",
    psutil.STATUS_TRACING_STOP: "is stopped by a debugger",
}
_STANDS_STILL = STOPPED | {psutil.STATUS_DISK_SLEEP: "is waiting for a disk"}


def alive_secs(hang_timeout_secs: float) -> float:
    """Returns the interval between the heartbeats of a child process, in seconds."""
    return min(MAX_ALIVE_SECS, ALIVE_SHARE * hang_timeout_secs)


def driver_silent_secs(hang_timeout_secs: float) -> float:
    """Returns the number of seconds after which a child process on another machine treats a silent driver as lost. The
    driver is not more patient with the child than the child with the driver, so a longer timeout bridges a longer cut
    of the connection."""
    return max(LEAST_DRIVER_SILENT_SECS, hang_timeout_secs)


def stacks_secs(hang_timeout_secs: float, stall_timeout_secs: float | None) -> float:
    """Returns the number of seconds after which a child process writes its Python stacks if its Python code makes no
    progress. The stacks must be in the log before the driver declares the process frozen or stalled."""
    timeout_secs = hang_timeout_secs if stall_timeout_secs is None else min(hang_timeout_secs, stall_timeout_secs)
    return max(STACKS_SHARE * timeout_secs, 2 * alive_secs(hang_timeout_secs))


class AwakeClock:
    """Counts the seconds during which the driver was awake. A pause counts as at most one second."""

    def __init__(self) -> None:
        self._ticked_secs = time.monotonic()
        self.awake_secs = 0.0

    def tick(self) -> float:
        """Returns the seconds since the last call, but at most MAX_TICK_SECS."""
        now = time.monotonic()
        passed_secs = min(now - self._ticked_secs, MAX_TICK_SECS)
        self._ticked_secs = now
        self.awake_secs += passed_secs
        return passed_secs


def judge(members: Iterable[Member], hang_timeout_secs: float) -> None:
    """Marks each member that has been silent for too long as lost, and sets a verdict that reports the silence."""
    limit_secs = SILENCE_SHARE * hang_timeout_secs
    for member in members:
        if not member.connected or member.done or member.lost_secs is not None or member.silent_secs < limit_secs:
            continue
        status = _status(member)
        if member.doing == STARTING and status not in STOPPED and member.silent_secs < STARTING_SILENCE_SECS:
            continue
        why = f"; the process {_STANDS_STILL[status]}" if status in _STANDS_STILL else ""
        member.verdict = (
            f"frozen: no sign of life for {member.silent_secs:.0f} s "
            f"(train.hang_timeout_secs={hang_timeout_secs:g}){why}"
        )
        member.lose(time.monotonic())


def is_stopped(member: Member) -> bool:
    """Returns whether the kernel reports that the process is stopped. False for processes on other machines."""
    return _status(member) in STOPPED


def _status(member: Member) -> str:
    """Returns the kernel's state of a process on this machine, or an empty string for a process on another machine."""
    if member.pid is None or member.host != socket.gethostname():
        return ""
    try:
        return psutil.Process(member.pid).status()
    except psutil.Error:
        return ""
