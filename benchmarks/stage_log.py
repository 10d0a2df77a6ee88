"""Reads the lines that parallax_runner/process/stage_times.py writes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO parallax_runner\.[\w.]+: stage (.+): ([\d.]+) s$")


@dataclass(frozen=True)
class Stage:
    """A stage: `name` took `secs` seconds and ended at `ended` (in seconds since the epoch)."""

    name: str
    secs: float
    ended: float

    @property
    def began(self) -> float:
        """The start time in seconds since the epoch."""
        return self.ended - self.secs


def parse(lines: Iterable[str]) -> list[Stage]:
    """Returns the stages in one process's log lines, in the order in which they ended."""
    found = []
    for line in lines:
        match = LINE.match(line.rstrip("\n"))
        if match:
            ended = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            found.append(Stage(match[2], float(match[3]), ended))
    return found


def read(run_dir: Path) -> dict[str, list[Stage]]:
    """Returns the stages of each process of a run. Keys are names of logs, such as `driver`, `worker_0`, `server_0`."""
    logs = sorted((run_dir / "logs").glob("*.log"))
    return {path.stem: parse(path.read_text(encoding="utf-8", errors="replace").splitlines()) for path in logs}
