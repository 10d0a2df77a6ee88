"""Records the states of a sweep's jobs in `ledger.jsonl` in the sweep's folder. The file is append-only and has one
event per line."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

import psutil

from parallax_runner.config.objective import Direction
from parallax_runner.config.slurm_allocation import sweep_job_id
from parallax_runner.files.credentials import without_password
from parallax_runner.sweep.slurm_queue import Queue

FILE_NAME = "ledger.jsonl"
POLL_SECS = 0.5
UNNAMED = "objective of an older version"

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


@dataclass(frozen=True)
class Job:
    """One job. `name` is the job's folder relative to the sweep's folder, `title` contains the swept overrides as
    typed, and `overrides` contains all overrides, including those that are not swept."""

    name: str
    title: str
    overrides: tuple[str, ...]
    run_dir: str

    @classmethod
    def of(cls, sweep_dir: Path, run_dir: str, title: str, overrides: Sequence[str]) -> Job:
        """Creates the job for a run directory, which is usually inside the sweep's folder."""
        path = os.path.abspath(run_dir)
        name = os.path.relpath(path, sweep_dir)
        return cls(name, without_password(title) or name, tuple(map(without_password, overrides)), path)


@dataclass(frozen=True)
class Standing:
    """The state of a job after its last event. `exit_status` is 0 unless the job failed or was interrupted.
    `objective_name` is UNNAMED if an older version wrote the event. `direction` states whether smaller or larger
    objectives are better. `slurm_job` is the id of the Slurm job that runs or ran this job, or None if there is no such
    Slurm job."""

    job: Job
    status: Status
    pid: int
    objective: float | None = None
    exit_status: int = 0
    error: str | None = None
    objective_name: str | None = None
    direction: Direction = "minimize"
    slurm_job: str | None = None

    def objective_fields(self) -> dict[str, Any]:
        """Returns the fields of an event that describe the objective."""
        return {"objective": self.objective, "objective_name": self.objective_name, "direction": self.direction}


@dataclass(frozen=True)
class Account:
    """The contents of a ledger. `standings` contains all jobs by name, in the order of their first start. `objectives`
    contains the objectives in the order in which the jobs finished. `objective_name` and `direction` belong to the
    first objective. The remaining fields describe the most recent start of the sweep. `failed_status` is the highest
    exit status of a failed job. `stop_status` is the exit status if the sweep was stopped, otherwise 0. `driver_pid` is
    the driver's process id."""

    standings: dict[str, Standing]
    objectives: tuple[float, ...] = ()
    objective_name: str | None = None
    direction: Direction = "minimize"
    failed_status: int = 0
    stop_status: int = 0
    driver_pid: int = 0

    def running(self, besides_pid: int = 0) -> list[Standing]:
        """Returns the running jobs, including Slurm jobs that have not ended. Omits jobs that the process `besides_pid`
        runs itself."""
        running = [one for one in self.standings.values() if one.status == "running"]
        return [one for one in running if one.slurm_job is not None or one.pid != besides_pid]

    def has_finished(self, job: Job) -> bool:
        """Returns whether this job has already finished with the same overrides."""
        known = self.standings.get(job.name)
        return known is not None and known.status == "finished" and sorted(known.job.overrides) == sorted(job.overrides)


class Ledger:
    """Reads and appends events. Any number of processes can read and append at the same time."""

    def __init__(self, sweep_dir: Path) -> None:
        self.path = sweep_dir / FILE_NAME

    def append(self, event: str, job: Job | None = None, **fields: Any) -> None:
        """Appends one event."""
        with self._open() as file:
            _write(file, event, job, fields)

    def read(self) -> Account:
        """Returns the current contents. A job that is recorded as running is treated as interrupted if its process no
        longer exists or its Slurm job has ended."""
        with self._open() as file:
            return account(_events(file))

    def claim(self, job: Job, *, fail_fast: bool) -> Standing | None:
        """Records the start of a job and returns None. The calling process must then run the job.

        If the job must not start, returns a standing instead. Its status is `finished` if the job has already finished.
        If the sweep is ending, the status is `interrupted` (or `failed` because of `fail_fast`), and the standing has
        the sweep's exit status. Waits while another process runs the same job, since Optuna may choose the same values
        twice.
        """
        while True:
            with self._open() as file:
                known = account(_events(file))
                before = known.standings.get(job.name)
                if known.stop_status:
                    return Standing(job, "interrupted", 0, exit_status=known.stop_status)
                if fail_fast and known.failed_status:
                    return Standing(job, "failed", 0, exit_status=known.failed_status)
                if before is not None and known.has_finished(job):
                    _write(file, "skipped", job, before.objective_fields())
                    return before
                if before is None or before.status != "running":
                    _write(file, "started", job, {})
                    return None
            time.sleep(POLL_SECS)

    def skip_finished(self, job: Job) -> Standing | None:
        """If the job has already finished, records that the job is skipped, and returns its standing. Otherwise returns
        None."""
        with self._open() as file:
            known = account(_events(file))
            if not known.has_finished(job):
                return None
            before = known.standings[job.name]
            _write(file, "skipped", job, before.objective_fields())
            return before

    def wait_until_alone(self) -> None:
        """Waits until no other process is running a job of the sweep."""
        while self.read().running(besides_pid=os.getpid()):
            time.sleep(POLL_SECS)

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        with open(self.path, "ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


def account(events: Sequence[dict[str, Any]]) -> Account:
    """Computes the account from a list of events."""
    starts = [number for number, event in enumerate(events) if event["event"] == "sweep_started"]
    begin = starts[-1] if starts else 0
    last: dict[str, dict[str, Any]] = {}
    submitted: dict[str, dict[str, Any]] = {}
    objectives: list[float] = []
    objective_name: str | None = None
    direction: Direction = "minimize"
    failed_status = stop_status = 0
    for number, event in enumerate(events):
        kind, is_present = event["event"], number >= begin
        exit_status = event.get("exit_status", 0)
        if kind == SUBMITTED:
            submitted[event["job"]] = event
        if kind in JOB_EVENTS:
            last[event["job"]] = event
            submitted.pop(event["job"], None)
        if kind == "finished" and (standing := _standing(event, "finished")).objective is not None:
            if not objectives:
                objective_name, direction = standing.objective_name, standing.direction
            objectives.append(standing.objective)
        if is_present and kind == "failed":
            failed_status = max(failed_status, exit_status)
        # If a Slurm job is ended or preempted, the other jobs continue.
        if is_present and kind in ("stop", "interrupted") and event.get("slurm_job") is None:
            stop_status = stop_status or exit_status
    standings = _standings(last, submitted)
    driver_pid = events[begin]["pid"] if starts else 0
    return Account(standings, tuple(objectives), objective_name, direction, failed_status, stop_status, driver_pid)


def _standings(last: Mapping[str, dict[str, Any]], submitted: Mapping[str, dict[str, Any]]) -> dict[str, Standing]:
    """Returns each job's standing, computed from its last event and, if it has been submitted to Slurm since then, from
    that submission."""
    queue, standings = Queue(), {}
    for name, event in last.items():
        status = JOB_EVENTS[event["event"]]
        is_gone = status == "running" and not _is_alive(event, queue)
        standings[name] = _standing(event, "interrupted" if is_gone else status)
    for name, event in submitted.items():
        if _is_alive(event, queue):
            standings[name] = _standing(event, "running")
    return standings


def _standing(event: dict[str, Any], status: Status) -> Standing:
    objective = event.get("objective")
    return Standing(
        job=Job(event["job"], event["title"], tuple(event["overrides"]), event["run_dir"]),
        status=status,
        pid=event["pid"],
        objective=None if objective is None else float(objective),  # NaN and infinity are strings
        objective_name=None if objective is None else event.get("objective_name", UNNAMED),
        direction=event.get("direction", "minimize"),
        exit_status=event.get("exit_status", 0),
        error=event.get("error"),
        slurm_job=event.get("slurm_job"),
    )


def _events(file: BinaryIO) -> list[dict[str, Any]]:
    """Returns the events of all complete lines. Skips lines that are incomplete because the process was killed or the
    disk was full."""
    file.seek(0)
    events = []
    for line in file.read().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


def _write(file: BinaryIO, event: str, job: Job | None, fields: dict[str, Any]) -> None:
    entry: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
    if job is not None:
        entry |= {"job": job.name, "title": job.title, "overrides": list(job.overrides), "run_dir": job.run_dir}
    entry |= {"pid": os.getpid(), "process_started": _process_started(os.getpid())}
    if job is not None and (slurm_job := sweep_job_id()) is not None:
        entry["slurm_job"] = slurm_job
    entry |= {key: _as_json(value) for key, value in fields.items()}
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":  # an incomplete line must not corrupt the new line
            file.write(b"\n")
    file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
    os.fsync(file.fileno())


def _as_json(value: Any) -> Any:
    finite = not isinstance(value, float) or abs(value) < float("inf")
    return value if finite else str(value)


@cache
def _process_started(pid: int) -> float:
    return psutil.Process(pid).create_time()


def _is_alive(event: dict[str, Any], queue: Queue) -> bool:
    """Returns whether the job of a `started` or SUBMITTED event is still running or will still run."""
    slurm_job = event.get("slurm_job")
    if slurm_job is not None and slurm_job != sweep_job_id():
        return queue.may_have(slurm_job)
    # Slurm may have restarted this job. In that case, the process of the previous start no longer exists.
    return event["event"] != SUBMITTED and _process_lives(event["pid"], event["process_started"])


def _process_lives(pid: int, started_secs: float) -> bool:
    """Returns whether the process is alive. A later process with the same pid does not count."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started_secs) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
