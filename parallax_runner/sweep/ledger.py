"""Records the states of a sweep's jobs in `ledger.jsonl` in the sweep's folder. The file is append-only and has one
event per line."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from parallax_runner.config.objective import Direction
from parallax_runner.errors import StorageError
from parallax_runner.files.locks import locked
from parallax_runner.files.plain import reason_of
from parallax_runner.launch.launchers.slurm.allocation import queue_id, sweep_job_id
from parallax_runner.launch.launchers.slurm.job_queue import Queue
from parallax_runner.process.identity import Life, ProcessIdentity
from parallax_runner.sweep.events import (
    HOST_ENDED,
    JOB_EVENTS,
    STOP,
    SUBMITTED,
    SWEEP_STARTED,
    Damaged,
    Event,
    Job,
    Status,
    event_in,
)

__all__ = ["SUBMITTED", "Account", "Job", "Ledger", "Standing", "Status", "account"]

FILE_NAME = "ledger.jsonl"
POLL_SECS = 0.5


@dataclass(frozen=True)
class Standing:
    """The state of a job after its last event. `exit_status` is 0 unless the job failed or was interrupted.
    `direction` states whether smaller or larger objectives are better. `slurm_job` is the id of the Slurm job that runs
    or ran this job, or None if there is no such Slurm job. `pid` is the id of the job's process on `host`."""

    job: Job
    status: Status
    pid: int
    objective: float | None = None
    exit_status: int = 0
    error: str | None = None
    objective_name: str | None = None
    direction: Direction = "minimize"
    slurm_job: str | None = None
    host: str = ""

    @property
    def is_here(self) -> bool:
        """Whether the job's process was started on this host."""
        return self.host == socket.gethostname()

    def objective_fields(self) -> dict[str, Any]:
        """Returns the fields of an event that describe the objective."""
        return {"objective": self.objective, "objective_name": self.objective_name, "direction": self.direction}


@dataclass(frozen=True)
class Account:
    """The contents of a ledger. `standings` contains all jobs by name, in the order of their first start. `objectives`
    contains the objectives in the order in which the jobs finished. `objective_name` and `direction` belong to the
    first objective. The remaining fields describe the most recent start of the sweep. `failed_status` is the highest
    exit status of a failed job. `stop_status` is the exit status if the sweep was stopped, otherwise 0. `driver_pid` is
    the driver's process id. `damaged_lines` is the number of lines that are damaged and were skipped."""

    standings: dict[str, Standing]
    objectives: tuple[float, ...] = ()
    objective_name: str | None = None
    direction: Direction = "minimize"
    failed_status: int = 0
    stop_status: int = 0
    driver_pid: int = 0
    damaged_lines: int = 0

    def running(self, besides_pid: int = 0) -> list[Standing]:
        """Returns the running jobs, including Slurm jobs that have not ended. Omits jobs that the process `besides_pid`
        runs itself."""
        running = [one for one in self.standings.values() if one.status == "running"]
        return [one for one in running if one.slurm_job is not None or not (one.is_here and one.pid == besides_pid)]

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
        longer exists or its Slurm job has ended. If its process was started on another host, it is treated as running,
        because this host cannot examine the process."""
        with self._open() as file:
            return _account_in(file)

    def claim(self, job: Job, *, fail_fast: bool) -> Standing | None:
        """Records the start of a job and returns None. The calling process must then run the job.

        If the job must not start, returns a standing instead. Its status is `finished` if the job has already finished.
        If the sweep is ending, the status is `interrupted` (or `failed` because of `fail_fast`), and the standing has
        the sweep's exit status. Waits while another process runs the same job, since Optuna may choose the same values
        twice.
        """
        while True:
            with self._open() as file:
                known = _account_in(file)
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
            known = _account_in(file)
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
        """Opens and locks the file. Raises StorageError if it cannot be opened."""
        with ExitStack() as stack:
            try:
                file = stack.enter_context(locked(self.path))
            except OSError as error:
                raise StorageError(
                    f"{self.path}: the record of the sweep cannot be opened: {reason_of(error)}. Correct this, or omit "
                    "hydra.sweep.dir to start another sweep"
                ) from error
            yield file


def account(events: Sequence[Event], damaged_lines: int = 0) -> Account:
    """Computes the account from a list of events."""
    present = _since_last_start(events)
    finished = [event for event in events if event.kind == "finished" and event.objective is not None]
    first = finished[0] if finished else Event("finished")
    stops = [event.exit_status for event in present if _stops(event)]
    return Account(
        _standings(_Last.of(events)),
        _objectives(finished),
        first.objective_name,
        first.direction,
        failed_status=max((event.exit_status for event in present if event.kind == "failed"), default=0),
        stop_status=stops[0] if stops else 0,
        driver_pid=_driver_pid(present),
        damaged_lines=damaged_lines,
    )


def _objectives(finished: Sequence[Event]) -> tuple[float, ...]:
    return tuple(event.objective for event in finished if event.objective is not None)


def _since_last_start(events: Sequence[Event]) -> Sequence[Event]:
    """Returns the events since the most recent start of the sweep, or all events if no start is recorded."""
    starts = [number for number, event in enumerate(events) if event.kind == SWEEP_STARTED]
    return events[starts[-1] :] if starts else events


def _driver_pid(present: Sequence[Event]) -> int:
    """Returns the id of the process that started the sweep, or 0 if it is unknown."""
    if not present or present[0].kind != SWEEP_STARTED:
        return 0
    process = present[0].process
    return 0 if process is None else process.pid


def _stops(event: Event) -> bool:
    """Returns whether an event stops the sweep. If Slurm ends or preempts the job of an event, other jobs continue."""
    return event.kind in (STOP, "interrupted") and event.slurm_job is None and event.exit_status != 0


@dataclass
class _Last:
    """The last event of each job, the jobs that have been submitted to Slurm since then, and for each host that has
    ended, the jobs that were started there before."""

    events: dict[str, Event] = field(default_factory=dict)
    submitted: dict[str, Event] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, events: Sequence[Event]) -> _Last:
        last = cls()
        for event in events:
            last._add(event)
        return last

    def _add(self, event: Event) -> None:
        if event.kind == HOST_ENDED:
            self.lost |= {name for name, one in self.events.items() if one.process and one.process.host == event.host}
        elif event.job is not None and event.kind == SUBMITTED:
            self.submitted[event.job.name] = event
        elif event.job is not None:
            self.events[event.job.name] = event
            self.submitted.pop(event.job.name, None)
            self.lost.discard(event.job.name)


def _standings(last: _Last) -> dict[str, Standing]:
    """Returns each job's standing, computed from its last event and, if it has been submitted to Slurm since then, from
    that submission."""
    queue, standings = Queue(), {}
    for name, event in last.events.items():
        status = JOB_EVENTS[event.kind]
        if status == "running" and (name in last.lost or not _may_run(event, queue)):
            status = "interrupted"
        standings[name] = _standing(event, status)
    for name, event in last.submitted.items():
        if _may_run(event, queue):
            standings[name] = _standing(event, "running")
    return standings


def _standing(event: Event, status: Status) -> Standing:
    assert event.job is not None and event.process is not None
    return Standing(
        job=event.job,
        status=status,
        pid=event.process.pid,
        objective=event.objective,
        objective_name=event.objective_name,
        direction=event.direction,
        exit_status=event.exit_status,
        error=event.error,
        slurm_job=event.slurm_job,
        host=event.process.host,
    )


def _account_in(file: BinaryIO) -> Account:
    """Returns the account of all complete lines. Skips lines that are damaged, for example because the process was
    killed or the disk was full."""
    file.seek(0)
    events, damaged_lines = [], 0
    for line in file.read().split(b"\n"):
        if not line.strip():
            continue
        try:
            event = event_in(line)
        except Damaged:
            damaged_lines += 1
            continue
        if event is not None:
            events.append(event)
    return account(events, damaged_lines)


def _write(file: BinaryIO, event: str, job: Job | None, fields: Mapping[str, Any]) -> None:
    entry: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
    if job is not None:
        entry |= {"job": job.name, "title": job.title, "overrides": list(job.overrides), "run_dir": job.run_dir}
    entry |= asdict(_own_identity(os.getpid()))
    if (allocation := queue_id()) is not None:
        entry["allocation"] = allocation
    if job is not None and (slurm_job := sweep_job_id()) is not None:
        entry["slurm_job"] = slurm_job
    entry |= {key: _as_json(value) for key, value in fields.items()}
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":  # an incomplete line must not corrupt the new line
            file.write(b"\n")
    file.write(json.dumps(entry).encode() + b"\n")
    os.fsync(file.fileno())


def _as_json(value: Any) -> Any:
    finite = not isinstance(value, float) or abs(value) < float("inf")
    return value if finite else str(value)


@cache
def _own_identity(pid: int) -> ProcessIdentity:
    """Returns the identity of this process, whose id is `pid`. A forked process has another id."""
    del pid
    return ProcessIdentity.of_this_process()


def _may_run(event: Event, queue: Queue) -> bool:
    """Returns whether the job of a `started` or SUBMITTED event is still running or will still run, as far as this host
    can tell."""
    if event.slurm_job is not None and event.slurm_job != sweep_job_id():
        return queue.may_have(event.slurm_job)
    if event.kind == SUBMITTED:
        return False
    assert event.process is not None
    life = event.process.life()
    if life is not Life.UNKNOWN:
        return life is Life.ALIVE
    # A Slurm job runs in one place at a time: if Slurm has started it again, here, its earlier start has ended.
    allocation = event.slurm_job or event.allocation
    if allocation is None:
        return True
    return allocation != queue_id() and queue.may_have(allocation)
