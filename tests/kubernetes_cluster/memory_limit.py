"""The memory that a container may use, which the kernel enforces by a control group (version 1)."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/memory")
KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
PREFIX = "parallax-pod-"
END_SECS = 10.0


def can_limit() -> bool:
    """Returns whether this machine has such control groups, and this user may make them."""
    return os.access(GROUPS / "cgroup.procs", os.W_OK)


def remove_left() -> None:
    """Removes the groups of programs that have been killed."""
    for folder in GROUPS.glob(f"{PREFIX}*"):
        pid, _, _ = folder.name.removeprefix(PREFIX).partition("-")
        if not Path("/proc", pid).exists():
            with suppress(OSError):  # its processes are still ending
                folder.rmdir()


class MemoryLimit:
    """A control group of this process whose processes together use at most `most_bytes`."""

    def __init__(self, number: int, most_bytes: int) -> None:
        self._folder = GROUPS / f"{PREFIX}{os.getpid()}-{number}"
        self._folder.mkdir()
        (self._folder / "memory.limit_in_bytes").write_text(str(most_bytes))

    @property
    def shell_line(self) -> str:
        """The line by which a shell and its later children join the group."""
        return f"echo 0 > {self._folder}/cgroup.procs"

    @property
    def peak_bytes(self) -> int:
        return int((self._folder / "memory.max_usage_in_bytes").read_text())

    @property
    def has_killed(self) -> bool:
        """Whether the kernel has ended a process of the group because its memory ran out."""
        found = KILLS.search((self._folder / "memory.oom_control").read_text())
        return found is not None and int(found[1]) > 0

    def remove(self) -> None:
        """Removes the group when its processes have ended."""
        deadline = time.monotonic() + END_SECS
        while (self._folder / "cgroup.procs").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self._folder.rmdir()
