"""Chooses the MLflow run in which a job is recorded: the run of the job's directory, the run from which the job
resumes, or a new run."""

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
    """Describes the MLflow run in which a job is recorded. If `goes_on` is set, the job appends to the directory's
    latest journal and to the MLflow run of that journal. `continues` is the MLflow run of another directory, and the
    job continues that run unless that run has finished. `continues_journal` is the id of the last journal that was sent
    to that run, or None if unknown. `resumed_from` is the run or checkpoint to record in a tag if a new run is
    created."""

    goes_on: bool = False
    continues: str | None = None
    continues_journal: str | None = None
    resumed_from: str | None = None


def continuation(run_dir: Path, uri: str, start: Start | None, *, in_sweep: bool = False) -> Continuation:
    """Returns the Continuation of a job that is recorded in the store `uri`. The job starts from the checkpoint
    `start`, or without a checkpoint if `start` is None.

    A job of a sweep never continues the run of another directory, since all jobs of the sweep may start from the same
    checkpoint.
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
    # This is the run directory, unless ckpt.dir puts the checkpoints elsewhere.
    source = start.checkpoint.parent.parent
    # If a checkpoint was written before MLflow answered, it contains no run id, but its run directory may contain one.
    run_id = start.run_id or read_run_id(source)
    if run_id is None:
        return Continuation(resumed_from=str(start.checkpoint))
    if in_sweep or _is_elsewhere(source, uri, run_id) or _is_going_on(source) or _has_unsent(source):
        return Continuation(resumed_from=run_id)
    return Continuation(continues=run_id, continues_journal=writer_of(source, run_id))


def _uri_of(journal: Path) -> str | None:
    """Returns the masked URI of a journal's store, or None if the driver was killed before it wrote the first line."""
    try:
        return masked_uri(journals.read_header(journal).uri)
    except ConfigError:
        return None


def _is_elsewhere(source: Path, uri: str, run_id: str) -> bool:
    known = read_run(source)
    return known.get("run_id") == run_id and masked_uri(str(known.get("uri"))) != masked_uri(uri)


def _has_unsent(source: Path) -> bool:
    """Returns whether the directory's journals have unsent entries. These entries would arrive after the entries of a
    job that continues the run."""
    return any(unsent(path) for path in journals.begun(source))


def _is_going_on(source: Path) -> bool:
    """Returns whether a driver is still working in the directory. Two drivers must not write to the same run."""
    if not journals.journals(source):
        return False
    try:
        with journals.writing(source, wait_secs=0.0):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
