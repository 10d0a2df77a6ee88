"""`tracking=mlflow`: turns the driver's information about a run into the header of the run's journal."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_runner.config.tracking_uri import TRACKING_URI
from parallax_runner.files.credentials import masked_uri
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow.continuing import Continuation, continuation
from parallax_runner.track.mlflow.destination import chosen_uri, is_foreign
from parallax_runner.track.mlflow.journal import Header
from parallax_runner.track.mlflow.journal_tracker import JournalTracker
from parallax_runner.track.mlflow.run_id import read_run_id
from parallax_runner.track.mlflow.store_check import check_store
from parallax_runner.track.mlflow.sync import sync
from parallax_runner.track.mlflow.tags import DESCRIPTION, RESUMED_TAG, TAGS_OF_ORIGIN, is_reserved
from parallax_runner.track.tracker import RunInfo

log = logging.getLogger(__name__)


class MlflowTracker(JournalTracker):
    """Records a run in the journal of the run's directory. The journal is then sent to the store `tracking.uri`."""

    has_options = False
    needs_experiment = True
    stores_in_database = True
    uri_variable = TRACKING_URI

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> None:
        """Raises ConfigError if the store cannot be used. Does not import MLflow."""
        tracking = config["tracking"]
        check_store(chosen_uri(tracking["uri"]), tracking["experiment"])

    @classmethod
    def sync(cls, folder: Path, given: Mapping[str, Any]) -> None:
        """Sends journals to the store that the command line names, or else to the store that each journal names."""
        sync(folder, chosen_uri(given["uri"]) if "uri" in given else None)

    @classmethod
    def run_id_in(cls, run_dir: Path) -> str | None:
        """Reads the id from the file that the sender writes."""
        return read_run_id(run_dir)

    def __init__(self, run: RunInfo) -> None:
        """Starts or continues a journal. Raises ConfigError and StorageError for the same reasons as JournalTracker."""
        uri = chosen_uri(run.config["tracking"]["uri"])
        goal = _goal(run, uri)
        super().__init__(run.run_dir, _header(run, uri, goal), goes_on=goal.goes_on, summary=run.summary)


def _goal(run: RunInfo, uri: str) -> Continuation:
    if run.is_sweep:
        return Continuation(goes_on=_has_run(run.run_dir, uri))
    return continuation(run.run_dir, uri, run.start)


def _has_run(sweep_dir: Path, uri: str) -> bool:
    present = journals.begun(sweep_dir)
    if not present or is_foreign(present[-1]):
        return False
    return masked_uri(journals.read_header(present[-1]).uri) == masked_uri(uri)


def _header(run: RunInfo, uri: str, goal: Continuation) -> Header:
    command = run.origin.get("command")
    tags = {
        **({} if command is None else {DESCRIPTION: f"`{command}`"}),
        # The sender sets the user: it is the user who sends the journal.
        **{TAGS_OF_ORIGIN.get(key, key): value for key, value in run.origin.items() if key != "user"},
        **({} if goal.resumed_from is None else {RESUMED_TAG: goal.resumed_from}),
        **run.tags,
    }
    for key in filter(is_reserved, map(str, run.tags)):
        log.warning("tracking.tags.%s is not recorded, because MLflow or this program sets this tag itself", key)
    return Header(
        uri=uri,
        experiment=run.config["tracking"]["experiment"],
        run_name=run.name,
        tags={str(key): str(value) for key, value in tags.items()},
        parent=None if run.sweep_dir is None else str(run.sweep_dir),
    )
