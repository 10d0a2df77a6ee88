"""Writes one Chrome trace of all processes: JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is the «Trace Event Format» of the Chromium project. A process is a worker or a server. A lane (a «thread» in
the format) holds the ops of one device and one class. On servers, a lane holds only the ops of one worker's session.
Ops in a lane do not overlap, because viewers show an op that begins during another op as a callee of that op.
"""

from __future__ import annotations

import heapq
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from parallax_runner.files.whole import writing_whole
from parallax_runner.profile.op_classes import OpClass
from parallax_runner.profile.timeline import Op, Process, StepTimeline

STEPS_TID = 0  # the lane with the steps; lanes with ops are numbered from 1
_ORDER = {OpClass.COMPUTE: 0, OpClass.COMMUNICATION: 1, OpClass.WAITING: 2}


class _Lane(NamedTuple):
    process: Process
    device: str
    rank: int
    op_class: OpClass
    number: int

    @property
    def title(self) -> str:
        """The label of the lane."""
        whose = f" for worker {self.rank}" if self.process.is_server else ""
        return f"{self.device} {self.op_class.value}{whose}" + (f" ({self.number + 1})" if self.number else "")

    @property
    def position(self) -> tuple[Any, ...]:
        """The sort key of the lane within its process."""
        return self.device, self.rank, _ORDER[self.op_class], self.number


@contextmanager
def writing_trace(path: Path) -> Iterator[TraceWriter]:
    """Writes a trace. The file appears when the `with` block ends without an error. Raises OSError if it cannot be
    written."""
    with writing_whole(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8")
        try:
            writer = TraceWriter(text)
            yield writer
            writer.end()
        finally:
            text.detach()  # writes what is buffered, and leaves the file to `writing_whole`


class TraceWriter:
    """Writes the events of a trace. Add steps in order."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._tids: dict[_Lane, int] = {}
        self._next_tid: dict[Process, int] = defaultdict(lambda: STEPS_TID + 1)
        self._pids: dict[Process, int] = {}
        self._origin_ns: int | None = None
        self._separator = ""
        self._file.write('{"traceEvents":[\n')

    def end(self) -> None:
        """Writes the names of the lanes and the end of the file."""
        self._name_processes_and_lanes()
        about = {"displayTimeUnit": "ms", "otherData": {"origin_ns_since_1970": self._origin_ns}}
        self._file.write(f"\n],{json.dumps(about)[1:]}\n")

    def add(self, timelines: Iterable[StepTimeline]) -> None:
        """Adds the timelines of all ranks for one step."""
        timelines = list(timelines)
        if self._origin_ns is None:
            self._origin_ns = min(timeline.start_ns for timeline in timelines)
        for timeline in timelines:
            pid = self._pid(Process(is_server=False, index=timeline.rank))
            name = f"step {timeline.step}"
            self._complete(pid, STEPS_TID, name, "step", timeline.start_ns, timeline.end_ns, {"step": timeline.step})
            for lane, op in _in_lanes(timeline):
                arguments = {"op": op.name, "type": op.type, "step": timeline.step}
                if op.sent_bytes is not None:
                    arguments |= {"bytes": op.sent_bytes, "from": op.sender}
                pid, tid = self._pid(op.process), self._tid(lane)
                self._complete(pid, tid, op.type, op.op_class.value, op.start_ns, op.end_ns, arguments)

    def _pid(self, process: Process) -> int:
        return self._pids.setdefault(process, len(self._pids) + 1)

    def _tid(self, lane: _Lane) -> int:
        if lane not in self._tids:
            self._tids[lane] = self._next_tid[lane.process]
            self._next_tid[lane.process] += 1
        return self._tids[lane]

    def _complete(
        self, pid: int, tid: int, name: str, category: str, start_ns: int, end_ns: int, arguments: dict[str, Any]
    ) -> None:
        """Writes an event with a duration. The format's times are in microseconds."""
        assert self._origin_ns is not None
        times = {"ts": (start_ns - self._origin_ns) / 1000, "dur": (end_ns - start_ns) / 1000}
        self._event({"name": name, "cat": category, "ph": "X", **times, "pid": pid, "tid": tid, "args": arguments})

    def _name_processes_and_lanes(self) -> None:
        for order, (process, pid) in enumerate(sorted(self._pids.items())):
            self._about("process_name", pid, STEPS_TID, {"name": str(process)})
            self._about("process_sort_index", pid, STEPS_TID, {"sort_index": order})
            if not process.is_server:
                self._about("thread_name", pid, STEPS_TID, {"name": "steps"})
                self._about("thread_sort_index", pid, STEPS_TID, {"sort_index": 0})
            own = sorted((lane for lane in self._tids if lane.process == process), key=lambda lane: lane.position)
            for position, lane in enumerate(own, start=1):
                self._about("thread_name", pid, self._tids[lane], {"name": lane.title})
                self._about("thread_sort_index", pid, self._tids[lane], {"sort_index": position})

    def _about(self, name: str, pid: int, tid: int, arguments: dict[str, Any]) -> None:
        self._event({"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": arguments})

    def _event(self, event: dict[str, Any]) -> None:
        self._file.write(self._separator + json.dumps(event, separators=(",", ":")))
        self._separator = ",\n"


def _in_lanes(timeline: StepTimeline) -> Iterable[tuple[_Lane, Op]]:
    """Yields each op with the first free lane of its kind. Ops must be sorted by start time."""
    free: dict[_Lane, list[int]] = defaultdict(list)  # a heap of lane numbers
    running: dict[_Lane, list[tuple[int, int]]] = defaultdict(list)  # a heap of (end, lane number)
    lanes: dict[_Lane, int] = defaultdict(int)
    for op in timeline.ops:
        first = _Lane(op.process, op.device, timeline.rank, op.op_class, 0)
        while running[first] and running[first][0][0] <= op.start_ns:
            heapq.heappush(free[first], heapq.heappop(running[first])[1])
        if not free[first]:
            heapq.heappush(free[first], lanes[first])
            lanes[first] += 1
        number = heapq.heappop(free[first])
        heapq.heappush(running[first], (op.end_ns, number))
        yield first._replace(number=number), op
