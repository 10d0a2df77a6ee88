"""Which MLflow run a job records into: its directory's own, that of the run it resumes from, or a new one."""

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
    """`goes_on`: the directory's present journal and MLflow run go on. `continues`: the MLflow run of another
    directory that does, if it has not finished, and `continues_journal` who wrote it there, None if nobody knows.
    `resumed_from`: what a new run names in a tag."""

    goes_on: bool = False
    continues: str | None = None
    continues_journal: str | None = None
    resumed_from: str | None = None


def continuation(run_dir: Path, uri: str, start: Start | None, *, in_sweep: bool = False) -> Continuation:
    """Settles what a job that starts from `start` (None: from nothing) continues in the store `uri`.

    Jobs of a sweep may all start from one checkpoint, and its run is not for all of them.
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
    # Where checkpoints are written unless ckpt.dir says otherwise.
    source = start.checkpoint.parent.parent
    # A checkpoint that was written before MLflow answered names no run; its directory may by now.
    run_id = start.run_id or read_run_id(source)
    if run_id is None:
        return Continuation(resumed_from=str(start.checkpoint))
    if in_sweep or _is_elsewhere(source, uri, run_id) or _is_going_on(source) or _has_unsent(source):
        return Continuation(resumed_from=run_id)
    return Continuation(continues=run_id, continues_journal=writer_of(source, run_id))


def _uri_of(journal: Path) -> str | None:
    """None where a driver was killed before it had written the first line."""
    try:
        return masked_uri(journals.read_header(journal).uri)
    except ConfigError:
        return None


def _is_elsewhere(source: Path, uri: str, run_id: str) -> bool:
    known = read_run(source)
    return known.get("run_id") == run_id and masked_uri(str(known.get("uri"))) != masked_uri(uri)


def _has_unsent(source: Path) -> bool:
    """Whether the directory's journals hold entries that would come after those of whoever goes on with its run."""
    return any(unsent(path) for path in journals.begun(source))


def _is_going_on(source: Path) -> bool:
    """Whether a driver still works in the directory; its run is not for two."""
    if not journals.journals(source):
        return False
    try:
        with journals.writing(source, wait_secs=0.0):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
