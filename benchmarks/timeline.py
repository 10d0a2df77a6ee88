"""Computes the time of each stage between a command and its first step, from the logs of the processes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.stage_log import Stage

FIRST_STEP = "first step"
IMPORT = "import TensorFlow"


@dataclass(frozen=True)
class Row:
    """A stage of a process: its duration, and its end time since the command, both in seconds."""

    process: str
    stage: str
    secs: float
    ends_secs: float


@dataclass(frozen=True)
class Startup:
    """One start. `first_step_secs` is the time from the command to the beginning of the first step. It includes
    `tensorflow_secs`, the time of TensorFlow's import in the driver and then in the slowest worker."""

    first_step_secs: float
    tensorflow_secs: float
    rows: tuple[Row, ...]

    @property
    def own_secs(self) -> float:
        """The time until the first step without TensorFlow's imports, in seconds."""
        return self.first_step_secs - self.tensorflow_secs


def measure(stages: Mapping[str, Sequence[Stage]], started: float) -> Startup:
    """Computes a start from the stages of one run. `started` is the time of its command in seconds since the epoch.

    For each stage of workers and servers, uses the slowest process. Raises ValueError if no step began.
    """
    first = next((one for one in stages["driver"] if one.name == FIRST_STEP), None)
    if first is None:
        raise ValueError("the driver's log has no first step: was its level changed?")
    groups: dict[str, list[Sequence[Stage]]] = {}
    for process, its_stages in stages.items():
        # Later stages, such as building the graph for the export, are not part of the start.
        of_start = [one for one in its_stages if one.began < first.began]
        groups.setdefault(process.split("_")[0], []).append(of_start)
    rows: list[Row] = []
    for group in ("driver", "server", "worker"):
        members = groups.get(group, [])
        rows += _slowest(group, members, started)
    imports = [row.secs for row in rows if row.stage == IMPORT and row.process != "server"]
    return Startup(first.began - started, sum(imports), tuple(rows))


def _slowest(group: str, members: Sequence[Sequence[Stage]], started: float) -> list[Row]:
    names = dict.fromkeys(stage.name for stages in members for stage in stages)
    rows = []
    for name in names:
        longest = max((stage for stages in members for stage in stages if stage.name == name), key=lambda one: one.secs)
        rows.append(Row(group, name, longest.secs, longest.ended - started))
    return sorted(rows, key=lambda row: row.ends_secs)


def medians(startups: Sequence[Startup]) -> Startup:
    """Returns the median of each number over several starts with the same stages."""
    keys = dict.fromkeys((row.process, row.stage) for startup in startups for row in startup.rows)
    rows = []
    for process, stage in keys:
        same = [row for startup in startups for row in startup.rows if (row.process, row.stage) == (process, stage)]
        secs, ends = statistics.median(row.secs for row in same), statistics.median(row.ends_secs for row in same)
        rows.append(Row(process, stage, secs, ends))
    return Startup(
        statistics.median(startup.first_step_secs for startup in startups),
        statistics.median(startup.tensorflow_secs for startup in startups),
        tuple(rows),
    )
