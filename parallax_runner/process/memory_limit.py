"""The memory that processes on this machine may use: the machine's own, or less in a control group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
# Version 1 of control groups writes a number near 2**63 for «no limit».
NO_LIMIT_BYTES = 1 << 60


class MemoryLimit(NamedTuple):
    """A limit in bytes, and what sets it, as in «this machine»."""

    size_bytes: int
    of: str


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """Returns the smallest limit of this process, or None if none can be read. `root` has the folders `proc` and
    `sys`."""
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[MemoryLimit]:
    total_bytes = _total_bytes(root)
    if total_bytes is not None:
        yield MemoryLimit(total_bytes, "this machine")
    for file in _files_of_groups(root):
        size_bytes = _number_in(file)
        if size_bytes is not None and size_bytes < NO_LIMIT_BYTES:
            yield MemoryLimit(size_bytes, f"the control group of {file}")


def _total_bytes(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    return None


def _files_of_groups(root: Path) -> Iterator[Path]:
    """Yields the files with the limits of this process's groups and of their parents, in both versions."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        folder = top / group.lstrip("/")
        while folder != top.parent:
            yield folder / name
            folder = folder.parent


def _number_in(file: Path) -> int | None:
    text = next(iter(_lines(file)), "")
    return int(text) if text.isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
