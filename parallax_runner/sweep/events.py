"""The events of a sweep's ledger. Each event is one line of JSON.

A line may be damaged: cut by a full disk, filled with zeros after a power failure, or edited. A damaged line is never
interpreted in part, because its numbers are used as process ids and its texts as paths.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parallax_runner.config.objective import DIRECTIONS, Direction
from parallax_runner.files.credentials import without_password
from parallax_runner.process.identity import ProcessIdentity

Status = Literal["finished", "failed", "interrupted", "running"]
# Maps each event of a job to the job's status after the event.
JOB_EVENTS: dict[str, Status] = {
    "started": "running",
    "finished": "finished",
    "skipped": "finished",
    "failed": "failed",
    "interrupted": "interrupted",
}
# The event of a job that has been submitted to Slurm. The job is treated as running while it is in Slurm's queue.
# Otherwise, it keeps its previous status until it starts.
SUBMITTED = "submitted"
SWEEP_STARTED, STOP = "sweep_started", "stop"
# A user has stated that a host no longer runs jobs that were started before this event.
HOST_ENDED = "host_ended"
MOST_PID = 2**22  # the kernel's own limit
MOST_EXIT_STATUS = 2**31
MOST_TICKS = 2**63


class Damaged(ValueError):
    """A line of the ledger is damaged."""


@dataclass(frozen=True)
class Job:
    """One job. `name` is the job's folder relative to the sweep's folder, `title` contains the swept overrides as
    typed, and `overrides` contains all overrides, including those that are not swept."""

    name: str
    title: str
    overrides: tuple[str, ...]
    run_dir: str

    @classmethod
    def of(cls, sweep_dir: os.PathLike[str], run_dir: str, title: str, overrides: Sequence[str]) -> Job:
        """Creates the job for a run directory, which is usually inside the sweep's folder."""
        path = os.path.abspath(run_dir)
        name = os.path.relpath(path, sweep_dir)
        return cls(name, without_password(title) or name, tuple(map(without_password, overrides)), path)


@dataclass(frozen=True)
class Event:
    """One event. `process` is the process that wrote the event, and `allocation` the Slurm job in which this process
    ran. `slurm_job` is the Slurm job that runs only this job of the sweep. `host` is the host of a HOST_ENDED event. A
    user writes this event, so it has no process."""

    kind: str
    job: Job | None = None
    process: ProcessIdentity | None = None
    allocation: str | None = None
    slurm_job: str | None = None
    objective: float | None = None
    objective_name: str | None = None
    direction: Direction = "minimize"
    exit_status: int = 0
    error: str | None = None
    host: str | None = None


def event_in(line: bytes) -> Event | None:
    """Returns the event in a line, or None if the event is of an unknown kind. Raises Damaged if the line is
    damaged."""
    fields = _object_in(line)
    kind = _text(fields, "event")
    if kind in JOB_EVENTS or kind == SUBMITTED:
        return _event(kind, fields, job=_job(fields))
    if kind in (SWEEP_STARTED, STOP):
        return _event(kind, fields)
    return Event(HOST_ENDED, host=_text(fields, "host")) if kind == HOST_ENDED else None


def _event(kind: str, fields: Mapping[str, Any], job: Job | None = None) -> Event:
    objective = _objective(fields)
    return Event(
        kind=kind,
        job=job,
        process=_process(fields),
        allocation=_optional_text(fields, "allocation"),
        slurm_job=_optional_text(fields, "slurm_job"),
        objective=objective,
        objective_name=None if objective is None else _text(fields, "objective_name"),
        direction=_direction(fields),
        exit_status=_number(fields.get("exit_status", 0), -MOST_EXIT_STATUS, MOST_EXIT_STATUS),
        error=_optional_text(fields, "error"),
    )


def _object_in(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Damaged(str(error)) from error
    if not isinstance(fields, dict):
        raise Damaged("it is not an object")
    return fields


def _job(fields: Mapping[str, Any]) -> Job:
    overrides = fields.get("overrides")
    if not isinstance(overrides, list):
        raise Damaged(f"overrides={overrides!r}")
    texts = tuple(_text({"overrides": one}, "overrides") for one in overrides)
    return Job(_text(fields, "job"), _text(fields, "title"), texts, _text(fields, "run_dir"))


def _process(fields: Mapping[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(
        host=_text(fields, "host"),
        boot_id=_text(fields, "boot_id"),
        pid=_number(fields.get("pid"), 1, MOST_PID),
        start_ticks=_number(fields.get("start_ticks"), 0, MOST_TICKS),
    )


def _objective(fields: Mapping[str, Any]) -> float | None:
    value = fields.get("objective")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Damaged(f"objective={value!r}")
    try:
        return float(value)  # NaN and infinity are strings
    except (ValueError, OverflowError) as error:
        raise Damaged(f"objective: {error}") from error


def _direction(fields: Mapping[str, Any]) -> Direction:
    value = fields.get("direction", "minimize")
    if value not in DIRECTIONS:
        raise Damaged(f"direction={value!r}")
    direction: Direction = value
    return direction


def _number(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:  # isinstance would accept true as an int
        raise Damaged(f"{str(value)[:40]} is not between {least} and {most}")
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or "\0" in value:
        raise Damaged(f"{key} is not a text")
    try:
        os.fsencode(value)  # a path may contain bytes that are not UTF-8
    except UnicodeEncodeError as error:
        raise Damaged(f"{key}: {error}") from error
    return value


def _optional_text(fields: Mapping[str, Any], key: str) -> str | None:
    return None if fields.get(key) is None else _text(fields, key)
