"""Opens runs in MLflow and writes to them. Only this module, `artifacts`, `checkpoint`, `dataset`, `errors`,
`logged_models` and `model` import MLflow, and only after a run is opened.

Runs are always addressed by id, never through the environment or MLflow's global state.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax_runner.files.credentials import masked_uri
from parallax_runner.process import changes
from parallax_runner.track.mlflow import artifacts, checkpoint, dataset_input, model
from parallax_runner.track.mlflow.changed_params import fitting_json, parse_changed
from parallax_runner.track.mlflow.errors import is_of_what_is_gone, is_permanent, one_line
from parallax_runner.track.mlflow.journal import Header
from parallax_runner.track.mlflow.store import (
    CopyFailed,
    EntryRefused,
    Gone,
    Opened,
    OutOfReach,
    Point,
    Refused,
    StoreRun,
)
from parallax_runner.track.mlflow.store_lock import sqlite_path, store_lock
from parallax_runner.track.mlflow.tags import CHANGED_TAG, JOURNAL_TAG, MAX_TAG_CHARS, of_journal, of_new_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

MAX_COPY_FAILURES = 4
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
# With its own defaults, MLflow retries and blocks for minutes when the server is down. Its retries are unnecessary,
# because the sender retries.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def prepare_environment() -> None:
    """Sets the environment variables that MLflow needs before its import. Keeps the values that the user has set."""
    for name, value in _ENVIRONMENT.items():
        changes.set_default(name, value)


def open_run(header: Header, known: Opened | None, parent_run_id: str | None) -> StoreRun:
    """Opens the run of a journal. This is the run `known`, a run that an earlier attempt created without receiving the
    store's reply, or a new run.

    Raises OutOfReach or Refused.
    """
    prepare_environment()
    with _errors_told(header):
        database = sqlite_path(header.uri)
        _import_mlflow(database)
        with store_lock(database):
            client = _client(header.uri)
            if known is not None:
                return MlflowRun(client, _known(client, header, known))
            experiment_id = _experiment_id(client, header.experiment, database)
            run = _made_before(client, experiment_id, header) or _new(client, experiment_id, header, parent_run_id)
            return MlflowRun(client, run)


class MlflowRun:
    """Implements StoreRun for an open MLflow run."""

    def __init__(self, client: MlflowClient, run: Run) -> None:
        self.opened = Opened(run.info.run_id, run.info.experiment_id)
        self._client, self._run_id = client, run.info.run_id
        self._params: dict[str, str] = dict(run.data.params)
        self._failures: dict[str, int] = {}
        self._changed = parse_changed(run.data.tags.get(CHANGED_TAG))

    def log(self, points: Sequence[Point], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Sends everything in one call. Parameters that already have a different value are recorded in a tag, since
        MLflow keeps the first value."""
        from mlflow.entities import Metric, Param, RunTag

        tags = of_journal(tags)
        changed = {key: value for key, value in params.items() if self._params.get(key, value) != value}
        fresh = {key: value for key, value in params.items() if key not in self._params}
        if changed:
            self._changed |= changed
            tags = {**tags, CHANGED_TAG: fitting_json(self._changed, MAX_TAG_CHARS)}
        self._call(
            partial(
                self._client.log_batch,
                self._run_id,
                metrics=[Metric(point.key, point.value, point.time_ms, point.step) for point in points],
                params=[Param(key, value) for key, value in fresh.items()],
                tags=[RunTag(key, value) for key, value in tags.items()],
            )
        )
        self._params |= fresh

    def log_artifact(self, path: Path, folder: str | None) -> None:
        """Copies a file, or copies a folder under its own name."""
        _check_readable(path)
        if path.is_dir():
            inside = path.name if folder is None else f"{folder}/{path.name}"
            self._copy(str(path), partial(self._client.log_artifacts, self._run_id, str(path), artifact_path=inside))
        else:
            self._copy(str(path), partial(self._client.log_artifact, self._run_id, str(path), artifact_path=folder))

    def log_final_file(self, path: Path) -> None:
        """Links a file, or copies it if the artifacts are on another file system."""
        _check_readable(path)
        uri = self._client.get_run(self._run_id).info.artifact_uri
        send = partial(self._client.log_artifact, self._run_id, str(path))
        self._copy(str(path), partial(artifacts.add_file, path, uri, send))

    def log_checkpoint(self, folder: Path) -> None:
        """Moves a checkpoint to the artifacts."""
        self._copy(str(folder), partial(checkpoint.send, self._client, self._run_id, folder))

    def log_model(self, saved_model: Path, journal: Path) -> None:
        """Adds a SavedModel to the artifacts and as a logged model."""
        self._copy(str(saved_model), partial(model.send, self._client, self.opened, saved_model, journal))

    def log_dataset(self, fields: Mapping[str, Any]) -> None:
        """Sends a dataset. A store that is too old to support datasets refuses the entry."""
        self._call(partial(dataset_input.send, self._client, self._run_id, fields))

    def _copy(self, what: str, action: Callable[[], Any]) -> None:
        """Runs an action that copies a file, which may fail even if the store itself works. A file that cannot be
        copied must not block later entries forever.

        Raises CopyFailed, or EntryRefused after MAX_COPY_FAILURES attempts.
        """
        try:
            self._call(action)
        except OutOfReach as error:
            self._check_that_it_is_there()
            self._failures[what] = self._failures.get(what, 0) + 1
            if self._failures[what] < MAX_COPY_FAILURES:
                raise CopyFailed(str(error)) from error
            raise EntryRefused(f"{MAX_COPY_FAILURES} attempts failed; the last error was: {error}") from error

    def set_running(self) -> None:
        """Sets the status to RUNNING, also for a run that is resumed."""
        self._call(partial(self._client.update_run, self._run_id, status="RUNNING"))

    def set_ended(self, status: str, time_ms: int) -> None:
        """Sets the status to FINISHED, FAILED or KILLED."""
        self._call(partial(self._client.set_terminated, self._run_id, status=STATUS[status], end_time=time_ms))

    def _call(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # training continues after any error of the store, its driver or the network
            if not is_permanent(error):
                raise OutOfReach(one_line(error)) from error
            self._check_that_it_is_there()
            raise EntryRefused(one_line(error)) from error

    def _check_that_it_is_there(self) -> None:
        try:
            run = self._client.get_run(self._run_id)
        except Exception as error:
            if not is_permanent(error):
                raise OutOfReach(one_line(error)) from error
            raise _refusal(error)(one_line(error)) from error
        if run.info.lifecycle_stage != "active":
            raise Gone(f"run {self._run_id} was deleted in MLflow. Restore it with `mlflow runs restore`")


def _check_readable(path: Path) -> None:
    if not os.access(path, os.R_OK):
        raise EntryRefused("the path does not exist, or cannot be read")


def _import_mlflow(database: Path | None) -> None:
    """Imports MLflow. The import takes seconds, so it must happen before this process holds the store's lock."""
    import mlflow  # noqa: F401

    # The levels are set after the import, because the import sets them too.
    for name in ("mlflow", "alembic", "urllib3"):
        changes.set_level(name, logging.ERROR)
    if database is not None:
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")


def _client(uri: str) -> MlflowClient:
    """Connects to the store. Connecting creates the tables in a new database and migrates the tables in an old
    database."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _experiment_id(client: MlflowClient, name: str, database: Path | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        artifacts = None if database is None else (database.parent / "mlartifacts").as_uri()
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException as error:
            # Another job has created the experiment in the meantime. The store lock cannot prevent that on a server.
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        raise Gone(
            f"tracking.experiment={name} was deleted in MLflow: choose another name, "
            f"or restore it with `mlflow experiments restore`"
        )
    return str(found.experiment_id)


def _made_before(client: MlflowClient, experiment_id: str, header: Header) -> Run | None:
    found = client.search_runs([experiment_id], f"tags.`{JOURNAL_TAG}` = '{header.journal_id}'", max_results=1)
    return found[0] if found else None


def _new(client: MlflowClient, experiment_id: str, header: Header, parent_run_id: str | None) -> Run:
    tags = of_new_run(header.tags, header.journal_id, parent_run_id)
    return client.create_run(experiment_id, start_time=header.time_ms, run_name=header.run_name, tags=tags)


def _known(client: MlflowClient, header: Header, known: Opened) -> Run:
    """Returns the run to which the journal has been sent before. Raises Gone if the run was deleted, and Refused if it
    belongs to another journal: the file that names the run may come from elsewhere."""
    run = client.get_run(known.run_id)
    if run.info.lifecycle_stage != "active":
        raise Gone(f"run {known.run_id} was deleted in MLflow. Restore it with `mlflow runs restore`")
    if run.data.tags.get(JOURNAL_TAG) != header.journal_id:
        raise Refused(
            f"run {known.run_id} belongs to another journal. Remove the file that ends in .sent next to this journal, "
            "to send the journal to a run of its own"
        )
    return run


@contextmanager
def _errors_told(header: Header) -> Iterator[None]:
    try:
        yield
    except (OutOfReach, Refused):
        raise
    except Exception as error:
        kind = _refusal(error) if is_permanent(error) else OutOfReach
        raise kind(one_line(error), uri=masked_uri(header.uri)) from error


def _refusal(error: Exception) -> type[Refused]:
    return Gone if is_of_what_is_gone(error) else Refused
