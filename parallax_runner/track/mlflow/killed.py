"""Records the end of a run whose driver was killed."""

from __future__ import annotations

import logging
from pathlib import Path

from parallax_runner.config.trackers import RUN_ID_KEY
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow.destination import is_foreign
from parallax_runner.track.mlflow.journal import Journal, Standing
from parallax_runner.track.mlflow.run_id import read_run_id
from parallax_runner.track.run_record import SUMMARY, write_summary

log = logging.getLogger(__name__)

KILLED = "the driver was killed before it could record how the run ended"
ERROR_TAG = "error"
# The artifacts that a driver adds at the end of a run.
LEFT_BEHIND = ("config.yaml", "plan.json", SUMMARY, "logs")


def end_killed(run_dir: Path) -> None:
    """Ends the journals in a directory that have no `end` entry yet. The directory must not have a live driver.

    Raises BlockingIOError if a driver is still working in the directory.
    """
    with journals.writing(run_dir, wait_secs=0.0):
        end_open_journals(run_dir, journals.begun(run_dir))


def end_open_journals(run_dir: Path, paths: list[Path], *, with_files: bool = True) -> None:
    """Appends the entries that a killed driver could not append, except to the journals of other users. The caller must
    hold `journal.writing`. Files are added only if `with_files` is set, and only to the latest journal."""
    for path in paths:
        if is_foreign(path):
            continue
        standing = journals.standing(path)
        if standing.is_ended or standing.start is None:
            continue
        journal = Journal(path)
        journal.append("tags", tags={ERROR_TAG: KILLED})
        is_latest = path == journals.begun(run_dir)[-1]
        if with_files and is_latest and standing.start.get("summary") and not (run_dir / SUMMARY).exists():
            write_summary(run_dir, _summary_of(standing, run_dir))
            _add_files(run_dir, journal)
        journal.append_end("interrupted")
        journal.close()
        log.info("%s: %s", path, KILLED)


def _add_files(run_dir: Path, journal: Journal) -> None:
    """Adds the files that a driver left behind. A link that leads outside the folder, such as the link that
    redirect_path creates for the logs, is not followed: in an unpacked folder, it could lead to any file."""
    for name in LEFT_BEHIND:
        path = run_dir / name
        if not path.exists():
            continue
        if path.resolve().is_relative_to(run_dir.resolve()):
            journal.append("artifact", path=name, folder=None)
        else:
            log.warning("%s of a killed run is not sent, because it is a link that leads outside the folder", path)


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
