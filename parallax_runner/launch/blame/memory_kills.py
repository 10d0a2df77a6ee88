"""Says that the kernel ended a process because memory ran out. The kernel itself tells the process nothing."""

from __future__ import annotations

import dataclasses
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from parallax_runner.launch.blame.first_death import Failure, Member
from parallax_runner.plan.format_bytes import format_bytes

PROC = Path("/proc")
BETWEEN_SECS = 1.0
REMEDY = (
    "use more machines or workers, a smaller batch or a smaller ckpt.copy_bytes; action=plan predicts the memory of "
    "each process"
)


class MemoryKills:
    """Watches the processes of one attempt that run on this machine, and the kernel's count of processes that it ended
    because memory ran out. `proc` is the folder of the kernel's files."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc, self._host = proc, socket.gethostname()
        self._count_before = self._count()
        self._peaks_bytes: dict[tuple[str, int], int] = {}
        self._looked_secs = 0.0

    def look_at(self, members: Iterable[Member]) -> None:
        """Notes the peak memory of the members, at most once a second."""
        now_secs = time.monotonic()
        if now_secs < self._looked_secs + BETWEEN_SECS:
            return
        self._looked_secs = now_secs
        for member in members:
            if member.pid is None or member.host != self._host:
                continue
            peak_bytes = self._peak_bytes(member.pid)
            if peak_bytes is not None:
                self._peaks_bytes[member.role, member.index] = peak_bytes

    def explained(self, failure: Failure) -> Failure:
        """Returns the failure with the reason, if SIGKILL ended the process on this machine, and the kernel has ended
        processes for lack of memory since the attempt began."""
        was_killed = failure.exit_status == -signal.SIGKILL and failure.host == self._host
        if not was_killed or self._count() <= self._count_before:
            return failure
        peak_bytes = self._peaks_bytes.get((failure.role, failure.index))
        used = "" if peak_bytes is None else f" It had used {format_bytes(peak_bytes)}."
        reason = (
            f"{failure.reason}, and the kernel of this machine has ended processes since the start because memory ran "
            f"out.{used} Remedy: {REMEDY}"
        )
        return dataclasses.replace(failure, reason=reason)

    def _count(self) -> int:
        """Returns how many processes the kernel has ended because memory ran out, in all control groups."""
        return self._number("vmstat", "oom_kill") or 0

    def _peak_bytes(self, pid: int) -> int | None:
        peak_kb = self._number(f"{pid}/status", "VmHWM:")
        return None if peak_kb is None else 1024 * peak_kb

    def _number(self, name: str, key: str) -> int | None:
        """Returns the number after a key at the beginning of a line, or None if there is no such file or line."""
        try:
            lines = (self._proc / name).read_text().splitlines()
        except OSError:
            return None
        words = next((line.split() for line in lines if line.split()[:1] == [key]), None)
        return None if words is None else int(words[1])
