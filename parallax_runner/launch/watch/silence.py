"""Notices processes that are there and do nothing: stopped, swapping, waiting for ever.

Each child sends a sign of life every few seconds from a thread of its own, whatever its main thread waits for. The
clock that measures silence is the driver's own time awake: while the driver itself was stopped, nobody is to blame.
"""

import socket
import time
from collections.abc import Iterable

import psutil

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.control import wire

# Of the time-out: what may pass in silence, so that the freeze is noticed, and all is ended, within it.
SILENCE_SHARE = 0.8
ALIVE_SHARE = 0.2
MAX_ALIVE_SECS = 2.0
STACKS_SHARE = 0.4
# While TensorFlow is loaded, and its libraries are cold, no other Python thread may run; only what the kernel says is
# stopped is called frozen earlier.
STARTING_SILENCE_SECS = 48.0
# More than this between two looks at the clock is a pause of the driver's.
MAX_TICK_SECS = 1.0
# What the kernel's words for a stopped process mean.
STOPPED = {
    psutil.STATUS_STOPPED: "is stopped (SIGSTOP)",
    psutil.STATUS_TRACING_STOP: "is stopped by a debugger",
}
_STANDS_STILL = STOPPED | {psutil.STATUS_DISK_SLEEP: "waits for a disk"}


def alive_secs(hang_timeout_secs: float) -> float:
    """How long a child may wait between two signs of life."""
    return min(MAX_ALIVE_SECS, ALIVE_SHARE * hang_timeout_secs)


def stacks_secs(hang_timeout_secs: float, stall_timeout_secs: float | None) -> float:
    """How long a child's Python may stand still before its stacks are written: early enough to have them in the log
    when the driver calls it frozen, or stalled."""
    timeout_secs = hang_timeout_secs if stall_timeout_secs is None else min(hang_timeout_secs, stall_timeout_secs)
    return max(STACKS_SHARE * timeout_secs, 2 * alive_secs(hang_timeout_secs))


class AwakeClock:
    """Seconds that the driver was awake; a pause counts as one second at most."""

    def __init__(self) -> None:
        self._ticked_secs = time.monotonic()
        self.awake_secs = 0.0

    def tick(self) -> float:
        """Seconds since the last call."""
        now = time.monotonic()
        passed_secs = min(now - self._ticked_secs, MAX_TICK_SECS)
        self._ticked_secs = now
        self.awake_secs += passed_secs
        return passed_secs


def judge(members: Iterable[Member], hang_timeout_secs: float) -> None:
    """Loses each member that has been silent for too long, with a verdict that says so."""
    limit_secs = SILENCE_SHARE * hang_timeout_secs
    for member in members:
        if not member.connected or member.done or member.lost_secs is not None or member.silent_secs < limit_secs:
            continue
        status = _status(member)
        if member.doing == wire.STARTING and status not in STOPPED and member.silent_secs < STARTING_SILENCE_SECS:
            continue
        why = f"; the process {_STANDS_STILL[status]}" if status in _STANDS_STILL else ""
        member.verdict = (
            f"frozen: no sign of life for {member.silent_secs:.0f} s "
            f"(train.hang_timeout_secs={hang_timeout_secs:g}){why}"
        )
        member.lose(time.monotonic())


def is_stopped(member: Member) -> bool:
    """Whether the kernel says so of a process of this machine."""
    return _status(member) in STOPPED


def _status(member: Member) -> str:
    """The kernel's word for the state of a process of this machine, empty for others."""
    if member.pid is None or member.host != socket.gethostname():
        return ""
    try:
        return psutil.Process(member.pid).status()
    except psutil.Error:
        return ""
