"""Finds out what the processes of a run were executing when one of them died. The driver sends a request, and each
child process answers."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from parallax_runner.launch.control.activity import Activity

SESSION_RUN = "session.run"  # the call in which a worker waits for TensorFlow
PACKAGE = Path(__file__).parents[2]
RUNS_SCRIPT = "<frozen runpy>"
# The file that TensorFlow's C++ threads use to call Python.
CALLS_PYTHON = "tensorflow/python/ops/script_ops.py"


@dataclass(frozen=True)
class Place:
    """Where the main thread of a process is. `call` is the function that is running ("session.run"), or empty for a
    line of a script. `line` is the line that called it ("train/loop.py:73 _step"), or empty if there is none. Both are
    empty if the place is unknown."""

    call: str = ""
    line: str = ""

    def __str__(self) -> str:
        """Returns the place as text, such as "session.run in train/loop.py:73 _step"."""
        return " in ".join(filter(None, (self.call, self.line)))

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Place:
        """Returns the place that `fields` describes. Raises ValueError if it describes none."""
        try:
            return cls(str(fields["call"]), str(fields["line"]))
        except KeyError as error:
            raise ValueError(f"not a place: {fields!r}") from error

    @property
    def fields(self) -> dict[str, str]:
        """The place as JSON values, for a message to the driver."""
        return {"call": self.call, "line": self.line}


@dataclass(frozen=True)
class Whereabouts:
    """The state of one process: what it was doing (`doing`), for how long (`doing_secs`), and the number of finished
    steps (`step`).

    Its main thread was at `where`. `inside` ("load in models.py:12") is the
    Python function that its graph was executing, or None if there was none. A field is None if the process could not
    report it.
    """

    role: str
    index: int
    host: str
    doing: Activity
    doing_secs: float | None
    where: Place | None
    step: int | None
    inside: str | None = None

    @property
    def texts(self) -> dict[str, Any]:
        """The fields as JSON values. The activity and the place are text for a user."""
        where = None if self.where is None else str(self.where)
        return {**asdict(self), "doing": str(self.doing), "where": where}


def main_thread_place() -> Place:
    """Returns the line of this package that the main thread is executing, and the function that this line called. If
    the thread is in a script that the package runs, returns the script's line."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    called = outside = None
    while frame is not None and not _is_own(frame):
        if frame.f_code.co_filename != RUNS_SCRIPT:
            outside = frame
        called, frame = frame, frame.f_back
    if called is not None and called is not outside and outside is not None:
        return Place(line=f"{Path(outside.f_code.co_filename).name}:{outside.f_lineno}")
    call = "" if called is None else _name(called)
    if frame is None:
        return Place(call)
    path = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
    return Place(call, f"{path}:{frame.f_lineno} {frame.f_code.co_name}")


def python_in_graph() -> str | None:
    """Returns the Python function that TensorFlow is executing for an op such as `py_function`, or None."""
    for thread, innermost in sys._current_frames().items():
        frame: FrameType | None = innermost
        own: FrameType | None = None
        while frame is not None and thread != threading.main_thread().ident:
            if "/tensorflow/" not in frame.f_code.co_filename:
                own = frame
            elif own is not None and frame.f_code.co_filename.endswith(CALLS_PYTHON):
                return f"{own.f_code.co_name} in {Path(own.f_code.co_filename).name}:{own.f_lineno}"
            frame = frame.f_back
    return None


def describe(others: Iterable[Whereabouts]) -> list[str]:
    """Returns one line for each group of processes in the same place, such as "workers 0, 2–47 waited in step 41
    (session.run)"."""
    alike: defaultdict[tuple[str, Activity, str], list[int]] = defaultdict(list)
    for one in others:
        alike[one.role, one.doing, _call_of(one)].append(one.index)
    lines = []
    for (role, doing, call), indices in alike.items():
        many = len(indices) > 1
        was = "were" if many else "was"
        if doing.is_place:
            was = "waited in"
        lines.append(f"{role}{'s' if many else ''} {ranges(indices)} {was} {doing}{f' ({call})' if call else ''}")
    return lines


def _call_of(one: Whereabouts) -> str:
    if one.inside:
        return one.inside
    if one.where is None:
        return "no answer"
    return one.where.call or one.where.line


def ranges(numbers: Sequence[int]) -> str:
    """Formats numbers as ranges: "0, 2–47" for 0 and all numbers from 2 to 47."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def _is_own(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_relative_to(PACKAGE)


def _name(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"
