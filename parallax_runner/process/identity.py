"""Identifies a process in a file that later processes read, possibly after a restart of the machine or on another host.

The times of /proc count from the start of the kernel, so a change of the clock does not affect them.
"""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DEAD_STATES = ("Z", "X")  # a zombie, and a process that is being removed


class Life(Enum):
    """Whether a process is running. UNKNOWN: it was started on a host that this host cannot examine."""

    ALIVE = "alive"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ProcessIdentity:
    """A process: its host, the host's boot id, its pid, and its start in clock ticks since the host was started. A
    later process with the same pid has another start."""

    host: str
    boot_id: str
    pid: int
    start_ticks: int

    @classmethod
    def of_this_process(cls) -> Self:
        """Returns the identity of this process. Raises OSError if /proc cannot be read."""
        stat = _stat_of(os.getpid())
        if stat is None:
            raise OSError("/proc/self/stat cannot be read")
        return cls(socket.gethostname(), boot_id(), os.getpid(), stat[1])

    @property
    def is_here(self) -> bool:
        """Whether the process was started on this host."""
        return self.host == socket.gethostname()

    def life(self) -> Life:
        """Returns whether the process is running now."""
        if self.boot_id == boot_id():
            stat = _stat_of(self.pid)
            if stat is not None and stat[1] == self.start_ticks and stat[0] not in DEAD_STATES:
                return Life.ALIVE
        return Life.ENDED if self.is_here else Life.UNKNOWN


@functools.cache
def boot_id() -> str:
    """Returns an id that the kernel draws when the machine is started."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def _stat_of(pid: int) -> tuple[str, int] | None:
    """Returns the state of a process and its start in clock ticks. Returns None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()  # the name can contain spaces and parentheses
    return after_name[0], int(after_name[19])
