"""Sums the execution times of each op over steps and ranks, and sorts the ops by total time."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from parallax_runner.files.whole import write_whole
from parallax_runner.profile.op_classes import OpClass
from parallax_runner.profile.timeline import Op, Process, StepTimeline

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class OpName:
    """The key of a row in the table of ops: an op on a device of a process."""

    name: str
    type: str
    op_class: OpClass
    process: Process
    device: str

    @classmethod
    def of(cls, op: Op) -> OpName:
        """Returns the key for an execution of an op."""
        return cls(op.name, op.type, op.op_class, op.process, op.device)


@dataclass
class Total:
    """The number of executions, and their total time."""

    count: int = 0
    total_ns: int = 0

    @property
    def mean_ns(self) -> float:
        """The mean time of an execution."""
        return self.total_ns / self.count


class OpTotals:
    """The totals of all ops. Timelines are added one at a time."""

    def __init__(self) -> None:
        self.ops: dict[OpName, Total] = {}
        self._busy_ns = 0

    def add(self, timeline: StepTimeline) -> None:
        """Counts every execution of an op in a step."""
        for op in timeline.ops:
            name, ns = OpName.of(op), op.end_ns - op.start_ns
            _count(self.ops, name, ns, 1)
            self._busy_ns += 0 if name.op_class is OpClass.WAITING else ns

    def heaviest(self, *, waiting: bool) -> list[tuple[OpName, Total]]:
        """Returns either the ops that only wait (`waiting`) or all other ops, in descending order of total time."""
        return _sorted(
            (name, total) for name, total in self.ops.items() if (name.op_class is OpClass.WAITING) == waiting
        )

    def by_type(self) -> list[tuple[tuple[str, OpClass], Total]]:
        """Returns the op types in descending order of total time, without ops that only wait."""
        return self._grouped(lambda name: (name.type, name.op_class))

    def share(self, total: Total) -> float:
        """Returns `total` as a fraction (0 to 1) of the total time of all ops that do not only wait. The times of ops
        that run in parallel are added up."""
        return total.total_ns / self._busy_ns if self._busy_ns else 0.0

    def _grouped(self, key: Callable[[OpName], Key]) -> list[tuple[Key, Total]]:
        groups: dict[Key, Total] = {}
        for name, total in self.heaviest(waiting=False):
            _count(groups, key(name), total.total_ns, total.count)
        return _sorted(groups.items())

    def write(self, path: Path) -> None:
        """Writes every op as a CSV row, in descending order of total time. Ops that only wait come last and have no
        share."""
        with io.StringIO(newline="") as file:
            table = csv.writer(file)
            table.writerow(["op", "type", "class", "process", "device", "count", "total_ms", "mean_ms", "share"])
            for waiting in (False, True):
                for name, total in self.heaviest(waiting=waiting):
                    share = "" if waiting else f"{self.share(total):.6f}"
                    times = [f"{total.total_ns / 1e6:.6f}", f"{total.mean_ns / 1e6:.6f}", share]
                    row = [name.name, name.type, name.op_class.value, str(name.process), name.device, total.count]
                    table.writerow([*row, *times])
            write_whole(path, file.getvalue())


def _count(totals: dict[Key, Total], key: Key, total_ns: int, count: int) -> None:
    total = totals.setdefault(key, Total())
    total.total_ns += total_ns
    total.count += count


def _sorted(totals: Iterable[tuple[Key, Total]]) -> list[tuple[Key, Total]]:
    return sorted(totals, key=lambda pair: -pair[1].total_ns)
