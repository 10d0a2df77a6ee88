"""Says that the kernel ended a process because memory ran out. The kernel itself tells the process nothing."""

from __future__ import annotations

import dataclasses
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from parallax_runner.launch import on_host
from parallax_runner.launch.blame.first_death import Failure, Member
from parallax_runner.plan.format_bytes import format_bytes

BETWEEN_SECS = 1.0
REMEDY = (
    "use more machines or workers, a smaller batch or a smaller ckpt.copy_bytes; action=plan predicts the memory of "
    "each process"
)


class MemoryKills:
    """Watches the processes of one attempt, and the kernel's count of processes that it ended because memory ran out.

    `count_on` returns this count for another host, or None if the host cannot be asked. `proc` is the folder of this
    machine's kernel files.
    """

    def __init__(self, count_on: Callable[[str], int | None], proc: Path = on_host.PROC) -> None:
        self._count_on, self._proc, self._here = count_on, proc, socket.gethostname()
        self._count_before = on_host.memory_kills(proc)
        self._counts_after: dict[str, int | None] = {}
        self._looked_secs = 0.0

    def look_at(self, members: Iterable[Member]) -> None:
        """Notes the peak memory of the members on this machine, at most once a second. Members on other machines report
        theirs less often."""
        now_secs = time.monotonic()
        if now_secs < self._looked_secs + BETWEEN_SECS:
            return
        self._looked_secs = now_secs
        for member in members:
            if member.pid is None or member.host != self._here:
                continue
            peak_bytes = on_host.peak_bytes(str(member.pid), self._proc)
            if peak_bytes is not None:
                member.peak_bytes = peak_bytes

    def explained(self, failure: Failure, member: Member) -> Failure:
        """Returns the failure of `member` with the reason, if SIGKILL ended it or may have ended it, and the kernel of
        its host has since ended processes for lack of memory."""
        may_be_killed = member.is_gone or failure.exit_status == -signal.SIGKILL
        if not may_be_killed or not self._has_grown(member):
            return failure
        host = "this machine" if member.host == self._here else member.host
        used = "" if member.peak_bytes is None else f" It had used {format_bytes(member.peak_bytes)}."
        reason = (
            f"{failure.reason}, and the kernel of {host} has ended processes since the start because memory ran "
            f"out.{used} Remedy: {REMEDY}"
        )
        return dataclasses.replace(failure, reason=reason)

    def _has_grown(self, member: Member) -> bool:
        """Returns whether the count of the member's host has grown, since the attempt or the member began."""
        if member.host == self._here:
            before, after = self._count_before, on_host.memory_kills(self._proc)
        else:
            before, after = member.memory_kills, self._count_after(member)
        return before is not None and after is not None and after > before

    def _count_after(self, member: Member) -> int | None:
        """Asks a host once, because the failure is asked for several times."""
        if member.memory_kills is None:  # this process had not begun, or its kernel does not count
            return None
        if member.host not in self._counts_after:
            self._counts_after[member.host] = self._count_on(member.host)
        return self._counts_after[member.host]
