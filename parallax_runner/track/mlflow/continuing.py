"""Chooses the MLflow run in which a job is recorded: the run of the job's directory, or a new run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parallax_runner.errors import ConfigError
from parallax_runner.files.credentials import masked_uri
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow.destination import is_foreign
from parallax_runner.track.mlflow.run_id import read_run_id
from parallax_runner.track.tracker import Start


@dataclass(frozen=True)
class Continuation:
    """Describes the MLflow run in which a job is recorded. If `goes_on` is set, the job appends to the directory's
    latest journal and to the MLflow run of that journal. Otherwise, a new run is created, and `resumed_from` is the run
    or checkpoint to record in a tag."""

    goes_on: bool = False
    resumed_from: str | None = None


def continuation(run_dir: Path, uri: str, start: Start | None) -> Continuation:
    """Returns the Continuation of a job that is recorded in the store `uri`. The job starts from the checkpoint
    `start`, or without a checkpoint if `start` is None. A job never continues the run of another directory."""
    if start is None:
        return Continuation()
    present = journals.journals(run_dir)
    own_id = read_run_id(run_dir)
    is_own = start.run_id == own_id if start.run_id and own_id else start.checkpoint.is_relative_to(run_dir)
    if present and is_own and not is_foreign(present[-1]) and _uri_of(present[-1]) == masked_uri(uri):
        return Continuation(goes_on=True)
    # If a checkpoint was written before MLflow answered, it contains no run id, but its run directory may contain one.
    # This is the run directory, unless ckpt.dir puts the checkpoints elsewhere.
    source = start.checkpoint.parent.parent
    return Continuation(resumed_from=start.run_id or read_run_id(source) or str(start.checkpoint))


def _uri_of(journal: Path) -> str | None:
    """Returns the masked URI of a journal's store, or None if the driver was killed before it wrote the first line."""
    try:
        return masked_uri(journals.read_header(journal).uri)
    except ConfigError:
        return None
