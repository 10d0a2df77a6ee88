"""Chooses the MLflow run that a job records into: that of its directory, that of the run it resumes from, or a new
one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parallax_runner.errors import ConfigError
from parallax_runner.files.credentials import masked_uri
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow.delivery import unsent, writer_of
from parallax_runner.track.mlflow.run_id import read_run, read_run_id
from parallax_runner.track.tracker import Start


@dataclass(frozen=True)
class Continuation:
    """The MLflow run that a job records into. If `goes_on` is set, the job appends to the directory's latest journal
    and its MLflow run. `continues` is the MLflow run of another directory to continue, unless that run has finished;
    `continues_journal` is the id of the journal that wrote it, or None if unknown. `resumed_from` is what a new run
    names in a tag."""

    goes_on: bool = False
    continues: str | None = None
    continues_journal: str | None = None
    resumed_from: str | None = None


def continuation(run_dir: Path, uri: str, start: Start | None, *, in_sweep: bool = False) -> Continuation:
    """Returns what a job that starts from `start` (None: without a checkpoint) continues in the store `uri`.

    A job of a sweep never continues the run of another directory, since all jobs may start from one checkpoint.
    """
    if start is None:
        return Continuation()
    present = journals.journals(run_dir)
    own_id = read_run_id(run_dir)
    is_own = start.run_id == own_id if start.run_id and own_id else start.checkpoint.is_relative_to(run_dir)
    if present and is_own:
        if _uri_of(present[-1]) == masked_uri(uri):
            return Continuation(goes_on=True)
        return Continuation(resumed_from=start.run_id or str(start.checkpoint))
    # The run directory, unless ckpt.dir moved the checkpoints elsewhere.
    source = start.checkpoint.parent.parent
    # A checkpoint that was written before MLflow answered names no run, but its directory may.
    run_id = start.run_id or read_run_id(source)
    if run_id is None:
        return Continuation(resumed_from=str(start.checkpoint))
    if in_sweep or _is_elsewhere(source, uri, run_id) or _is_going_on(source) or _has_unsent(source):
        return Continuation(resumed_from=run_id)
    return Continuation(continues=run_id, continues_journal=writer_of(source, run_id))


def _uri_of(journal: Path) -> str | None:
    """Returns None if the driver was killed before it wrote the first line."""
    try:
        return masked_uri(journals.read_header(journal).uri)
    except ConfigError:
        return None


def _is_elsewhere(source: Path, uri: str, run_id: str) -> bool:
    known = read_run(source)
    return known.get("run_id") == run_id and masked_uri(str(known.get("uri"))) != masked_uri(uri)


def _has_unsent(source: Path) -> bool:
    """Tells whether the directory's journals have unsent entries. They would arrive after the entries of a job that
    continues the run."""
    return any(unsent(path) for path in journals.begun(source))


def _is_going_on(source: Path) -> bool:
    """Tells whether a driver is still working in the directory. Two drivers must not write to one run."""
    if not journals.journals(source):
        return False
    try:
        with journals.writing(source, wait_secs=0.0):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
