"""What the processes of a run use while they live: resident memory, open files and threads, sampled each second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import psutil

PERIOD_SECS = 1.0


@dataclass(frozen=True)
class Sample:
    """One look at one process."""

    at_secs: float
    memory_bytes: int
    files: int
    threads: int


@dataclass
class Usage:
    """The samples of one process. `name` says what it is, such as `worker 1` or `driver`."""

    name: str
    samples: list[Sample] = field(default_factory=list)

    def between(self, first_secs: float, last_secs: float) -> list[Sample]:
        """Returns the samples between two times."""
        return [sample for sample in self.samples if first_secs <= sample.at_secs <= last_secs]


class Watch:
    """A context manager that samples a process and its descendants until it ends."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._found: dict[int, Usage] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def usages(self) -> dict[str, list[Usage]]:
        """Returns the usages by name."""
        by_name: dict[str, list[Usage]] = defaultdict(list)
        for usage in self._found.values():
            by_name[usage.name].append(usage)
        return dict(by_name)

    def _watch(self) -> None:
        start = time.monotonic()
        while not self._ended.wait(PERIOD_SECS):
            with contextlib.suppress(psutil.Error):
                for process in (self._root, *self._root.children(recursive=True)):
                    self._look(process, time.monotonic() - start)

    def _look(self, process: psutil.Process, at_secs: float) -> None:
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            sample = Sample(at_secs, process.memory_info().rss, process.num_fds(), process.num_threads())
            if process.pid not in self._found:
                self._found[process.pid] = Usage("driver" if process == self._root else name_of(process))
            self._found[process.pid].samples.append(sample)


def name_of(process: psutil.Process) -> str:
    """Returns the role of a process of a run."""
    argv = process.cmdline()
    for role in ("worker", "server"):
        if f"parallax_runner.{role}" in argv:
            return f"{role} {process.environ().get('OMPI_COMM_WORLD_RANK', argv[-1])}"
    return argv[0].rpartition("/")[2] if argv else "ended"
