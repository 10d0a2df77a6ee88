"""Control groups that limit memory, in both versions."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

GROUPS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}
REMOVAL_SECS = 10


@contextlib.contextmanager
def limited_group(name: str, limit_bytes: int) -> Iterator[Path | None]:
    """Makes a control group that may use so much memory, or gives None if this user cannot make one. Removes the group,
    which must have no processes then."""
    group = _made(f"parallax_test_{os.getpid()}_{name}", limit_bytes)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group)


def enter(group: Path, pid: int) -> None:
    """Moves a process into a group. Does nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def _made(name: str, limit_bytes: int) -> Path | None:
    for top, limit in GROUPS.items():
        group = top / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(limit_bytes))
        except OSError:
            _remove(group)
            continue
        return group
    return None


def _remove(group: Path) -> None:
    """Processes that have just ended can still be in the group."""
    deadline = time.monotonic() + REMOVAL_SECS
    while time.monotonic() < deadline:
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)
