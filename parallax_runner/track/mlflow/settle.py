"""Records the end of runs whose driver was killed, and sends the entries that other runs have left unsent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from parallax_runner.config.trackers import RUN_ID_KEY
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

KILLED = "the driver was killed before it could record how the run ended"
ERROR_TAG = "error"
# Errors that affect one folder and must not stop the sending of other folders.
_OF_THE_STORE = (Refused, ConfigError, OSError)
_OF_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
# The artifacts that a driver adds at the end of a run.
LEFT_BEHIND = ("config.yaml", "plan.json", SUMMARY, "logs")


def settle_others(own_dir: Path, open_run: OpenRun, stopped: Callable[[], bool] = lambda: False) -> None:
    """Settles and sends all runs of this user on this host that have no live driver, except the run in `own_dir`.

    Never raises. If a store is unreachable, the next driver tries again. A run is removed from the list of open runs if
    it can never be sent, because it was deleted in MLflow or its directory or journal no longer exists.
    """
    unreachable: set[str] = set()
    # The entries are sorted by path. The run of a sweep comes before the runs of the sweep's jobs, which need the id of
    # the sweep's run.
    for entry in sorted(open_runs.listed(), key=lambda entry: entry.run_dir):
        run_dir = Path(entry.run_dir)
        if stopped() or not entry.is_here or run_dir == own_dir:
            continue
        try:
            if not _has_journal(run_dir):
                open_runs.forget(run_dir, entry)
                continue
            # The live process may be a sweep that has finished this run and is now running other jobs. If this run has
            # not ended, the process is still this run's driver and will send the run itself.
            if not entry.is_alive:
                settle(run_dir)
            elif not journals.standing(journals.begun(run_dir)[-1]).is_ended:
                continue
            if send_rest(run_dir, open_run, unreachable):
                open_runs.forget(run_dir, entry)
        except (OutOfReach, Busy, BlockingIOError) as error:
            log.info("%s has not been sent yet: %s", run_dir, error)
        except Gone as error:
            log.warning("%s will not be sent: %s", run_dir, error)
            open_runs.forget(run_dir, entry)
        except (*_OF_THE_STORE, *_OF_DAMAGE) as error:
            log.warning("%s cannot be sent now: %s: %s", run_dir, type(error).__name__, error)


def _has_journal(run_dir: Path) -> bool:
    """Returns whether a directory has a journal. Raises OSError if the directory cannot be read, because the directory
    may contain a journal."""
    try:
        os.listdir(run_dir)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return bool(journals.begun(run_dir))


def settle(run_dir: Path) -> None:
    """Ends the journals in a directory that have no `end` entry yet. The directory must not have a live driver.

    Raises BlockingIOError if a driver is still working in the directory.
    """
    with journals.writing(run_dir, wait_secs=0.0):
        end_open_journals(run_dir, journals.begun(run_dir))


def end_open_journals(run_dir: Path, paths: list[Path], *, with_files: bool = True) -> None:
    """Appends the entries that a killed driver could not append. The caller must hold `journal.writing`. Files are
    added only if `with_files` is set, and only to the latest journal."""
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
    """Returns the path, relative to the run's folder, of a file that a driver left behind. Returns None if the file is
    outside the folder and cannot be put into the outbox.

    A symbolic link that leads out of the folder, such as the link that redirect_path creates for the logs, is followed
    only if this user's state folder has an entry for the run's folder and the journal is this user's own. In any other
    folder, the link could lead to any file.
    """
    path = run_dir / name
    if path.resolve().is_relative_to(run_dir.resolve()):
        return name
    is_own = any(Path(entry.run_dir) == run_dir for entry in open_runs.listed()) and not is_foreign(journal)
    try:
        if is_own:
            return str(outbox.hold(path, run_dir).relative_to(run_dir))
        reason = "the link leads outside the run's folder"
    except OSError as error:
        reason = str(error)
    log.warning("%s of a killed run is not sent: %s", path, reason)
    return None


def send_rest(run_dir: Path, open_run: OpenRun, unreachable: set[str] | None = None, *, uri: str | None = None) -> bool:
    """Sends the unsent entries in a directory's journals to the store `uri`, or else to the store that each journal
    names. Returns True if all journals have also ended, which means that no more entries can follow.

    Does not contact stores in `unreachable`, and adds each store that does not answer to this set. Raises OutOfReach,
    Refused and Busy.
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
            raise OutOfReach(f"tracking.uri={masked_uri(header.uri)} did not answer an earlier attempt")
        try:
            with Delivery(path, open_run, header) as delivery:
                delivery.send_all()
        except OutOfReach as error:
            if unreachable is not None and not isinstance(error, ParentUnknown | CopyFailed):
                unreachable.add(header.uri)
            raise
    return all_ended


def _summary_of(standing: Standing, run_dir: Path) -> dict[str, object]:
    """Completes the summary that the driver began. Adds the outcome and the last recorded values."""
    assert standing.start is not None
    return {
        **standing.start["summary"],
        "status": "interrupted",
        "error": KILLED,
        "steps": standing.last_steps.get("train/loss", 0),
        "loss_last": standing.last_values.get("train/loss"),
        RUN_ID_KEY: read_run_id(run_dir),
    }
