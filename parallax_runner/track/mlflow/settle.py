"""Tells MLflow, and `summary.json`, of runs whose driver was killed; and sends what other runs have left unsent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from parallax_runner.errors import ConfigError
from parallax_runner.files.credentials import masked_uri
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow import open_runs, outbox
from parallax_runner.track.mlflow.delivery import Busy, Delivery, unsent
from parallax_runner.track.mlflow.destination import addressed, is_foreign
from parallax_runner.track.mlflow.journal import Journal, Standing
from parallax_runner.track.mlflow.run_id import read_run_id
from parallax_runner.track.mlflow.store import CopyFailed, Gone, OpenRun, OutOfReach, ParentUnknown, Refused
from parallax_runner.track.run_record import SUMMARY, write_summary

log = logging.getLogger(__name__)

KILLED = "the driver was killed before it could say how the run ended"
ERROR_TAG = "error"
# What costs one folder, and keeps no other from being sent.
_OF_THE_STORE = (Refused, ConfigError, OSError)
_OF_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
# What the driver would have added to the artifacts at the end.
LEFT_BEHIND = ("config.yaml", "plan.json", SUMMARY, "logs")


def settle_others(own_dir: Path, open_run: OpenRun, stopped: Callable[[], bool] = lambda: False) -> None:
    """Settles and sends all runs of this user on this host that no living driver cares for, but `own_dir`.

    Nothing is raised: a store that is out of reach is left alone until the next start. What can never be told is
    forgotten: a run that was deleted in MLflow, or whose directory or journal is gone.
    """
    unreachable: set[str] = set()
    # By path: the run of a sweep comes before those of its jobs, which need its id.
    for entry in sorted(open_runs.listed(), key=lambda entry: entry.run_dir):
        run_dir = Path(entry.run_dir)
        if stopped() or not entry.is_here or run_dir == own_dir:
            continue
        try:
            if not _has_journal(run_dir):
                open_runs.forget(run_dir, entry)
                continue
            # A living process may be a sweep's, with other jobs by now; one whose job goes on sends by itself.
            if not entry.is_alive:
                settle(run_dir)
            elif not journals.standing(journals.begun(run_dir)[-1]).is_ended:
                continue
            if send_rest(run_dir, open_run, unreachable):
                open_runs.forget(run_dir, entry)
        except (OutOfReach, Busy, BlockingIOError) as error:
            log.info("%s waits: %s", run_dir, error)
        except Gone as error:
            log.warning("%s is not sent any more: %s", run_dir, error)
            open_runs.forget(run_dir, entry)
        except (*_OF_THE_STORE, *_OF_DAMAGE) as error:
            log.warning("%s cannot be sent now: %s: %s", run_dir, type(error).__name__, error)


def _has_journal(run_dir: Path) -> bool:
    """Raises OSError where the directory cannot be read, which says nothing of what is in it."""
    try:
        os.listdir(run_dir)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return bool(journals.begun(run_dir))


def settle(run_dir: Path) -> None:
    """Ends the journals of a directory in which no driver works any more, where they have no end.

    Raises BlockingIOError if one does.
    """
    with journals.writing(run_dir, wait_secs=0.0):
        end_open_journals(run_dir, journals.begun(run_dir))


def end_open_journals(run_dir: Path, paths: list[Path], *, with_files: bool = True) -> None:
    """Adds what a killed driver could not; the caller holds `journal.writing`. Files only `with_files`, and only to the
    present run's journal."""
    for path in paths:
        standing = journals.standing(path)
        if standing.is_ended or standing.start is None:
            continue
        journal = Journal(path)
        journal.append("tags", tags={ERROR_TAG: KILLED})
        present = path == journals.begun(run_dir)[-1]
        if with_files and present and standing.start.get("summary") and not (run_dir / SUMMARY).exists():
            write_summary(run_dir, _summary_of(standing, run_dir))
            for name in LEFT_BEHIND:
                inside = _in_run(run_dir, name, path) if (run_dir / name).exists() else None
                if inside is not None:
                    journal.append("artifact", path=inside, folder=None)
        journal.append_end("interrupted")
        journal.close()
        log.info("%s: %s", path, KILLED)


def _in_run(run_dir: Path, name: str, journal: Path) -> str | None:
    """What a driver has left behind, as seen from the run's folder; None where that is elsewhere and cannot be held.

    A link out of the folder, as redirect_path makes one for the logs, is followed only where this user's state folder
    says that a driver of this user worked there: in a folder of another origin it could lead to any file.
    """
    path = run_dir / name
    if path.resolve().is_relative_to(run_dir.resolve()):
        return name
    is_own = any(Path(entry.run_dir) == run_dir for entry in open_runs.listed()) and not is_foreign(journal)
    try:
        if is_own:
            return str(outbox.hold(path, run_dir).relative_to(run_dir))
        reason = "it leads out of the run's folder"
    except OSError as error:
        reason = str(error)
    log.warning("%s of a killed run is not sent: %s", path, reason)
    return None


def send_rest(run_dir: Path, open_run: OpenRun, unreachable: set[str] | None = None, *, uri: str | None = None) -> bool:
    """Sends what the journals of a directory hold to the store `uri`, or else where each says; True if all of them have
    also ended, so that no more can come.

    Stores in `unreachable` are not asked again, and those that do not answer are added. Raises OutOfReach, Refused,
    Busy.
    """
    all_ended = True
    for path in journals.begun(run_dir):
        all_ended = all_ended and journals.standing(path).is_ended
        if uri is None and not unsent(path):
            continue
        header = addressed(path, uri)
        if not unsent(path, header):
            continue
        if unreachable is not None and header.uri in unreachable:
            raise OutOfReach(f"tracking.uri={masked_uri(header.uri)} did not answer before")
        try:
            with Delivery(path, open_run, header) as delivery:
                delivery.send_all()
        except OutOfReach as error:
            if unreachable is not None and not isinstance(error, ParentUnknown | CopyFailed):
                unreachable.add(header.uri)
            raise
    return all_ended


def _summary_of(standing: Standing, run_dir: Path) -> dict[str, object]:
    """The summary that the driver has begun, with what its metrics say."""
    assert standing.start is not None
    return {
        **standing.start["summary"],
        "status": "interrupted",
        "error": KILLED,
        "steps": standing.last_steps.get("train/loss", 0),
        "loss_last": standing.last_values.get("train/loss"),
        "mlflow_run_id": read_run_id(run_dir),
    }
