"""Records a run in MLflow: the only module that imports it, and only when a tracker is made."""

import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax_runner.errors import ConfigError
from parallax_runner.track.metric_buffer import MetricBuffer, Point
from parallax_runner.track.params import flatten, valid_key
from parallax_runner.track.store_lock import sqlite_path, store_lock
from parallax_runner.track.tracker import Status

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

PARAMS_PER_BATCH = 100
MAX_TAG_CHARS = 8000
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
# With its own defaults MLflow blocks for minutes when its server is down.
_HTTP_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "3"}


class MlflowTracker:
    """One MLflow run, addressed by its id alone: nothing in the environment or in MLflow's global state matters.

    Raises ConfigError if the store cannot be opened; from then on a store out of reach is a warning, given once.
    """

    def __init__(self, uri: str, experiment: str, run_name: str | None, tags: Mapping[str, Any]) -> None:
        self._ended = False
        self._warned = False
        self._client, self.run_id = _open_run(uri, experiment, run_name, tags)
        self._buffer = MetricBuffer(self._send)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Records a nested configuration as flat parameters, `comm.name` and the like."""
        from mlflow.entities import Param

        entities = [Param(key, value) for key, value in flatten(params).items()]
        for start in range(0, len(entities), PARAMS_PER_BATCH):
            batch = entities[start : start + PARAMS_PER_BATCH]
            self._try(partial(self._client.log_batch, self.run_id, params=batch))

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Keeps the numbers of one step for the next batch; None is left out."""
        now_ms = time.time_ns() // 1_000_000
        self._buffer.add(
            [Point(valid_key(key), float(value), now_ms, step) for key, value in metrics.items() if value is not None]
        )

    def log_artifact(self, path: str | Path) -> None:
        """Copies a file to the run's artifacts, or a folder under its own name."""
        path = Path(path)
        if path.is_dir():
            self._try(lambda: self._client.log_artifacts(self.run_id, str(path), artifact_path=path.name))
        else:
            self._try(lambda: self._client.log_artifact(self.run_id, str(path)))

    def end(self, status: Status) -> None:
        """Sends the last metrics and sets FINISHED, FAILED or KILLED; the first call counts."""
        if self._ended:
            return
        self._ended = True
        lost = self._buffer.close()
        if lost:
            log.warning("MLflow run %s ends without its last %d metrics", self.run_id, lost)
        self._try(lambda: self._client.set_terminated(self.run_id, status=_STATUS[status]))

    def _send(self, points: Sequence[Point]) -> bool:
        from mlflow.entities import Metric

        metrics = [Metric(point.key, point.value, point.time_ms, point.step) for point in points]
        return self._try(lambda: self._client.log_batch(self.run_id, metrics=metrics))

    def _try(self, action: Callable[[], Any]) -> bool:
        try:
            action()
        except _store_errors() as error:
            if not self._warned:
                log.warning("MLflow run %s: %s (training goes on; said once)", self.run_id, _one_line(error))
            self._warned = True
            return False
        return True


def _open_run(uri: str, experiment: str, run_name: str | None, tags: Mapping[str, Any]) -> tuple["MlflowClient", str]:
    if not uri:
        raise ConfigError(f"tracking.uri={uri!r} is empty: name a store such as sqlite:///mlflow.db, or tracking=off")
    _quiet_mlflow(uri)
    from mlflow import MlflowClient

    database = sqlite_path(uri)
    if database is not None:
        # Takes seconds; not while others wait for the lock.
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
    short_tags = {str(key): str(value)[:MAX_TAG_CHARS] for key, value in tags.items()}
    try:
        with store_lock(database):
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            experiment_id = _experiment_id(client, experiment, database)
            run = client.create_run(experiment_id, run_name=run_name, tags=short_tags)
    except _store_errors() as error:
        raise ConfigError(
            f"tracking.uri={uri} cannot be used: {_one_line(error)}. "
            "Give a store that can be written, such as sqlite:///mlflow.db, or tracking=off"
        ) from error
    return client, run.info.run_id


def _experiment_id(client: "MlflowClient", name: str, database: Path | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        artifacts = None if database is None else (database.parent / "mlartifacts").as_uri()
        try:
            return client.create_experiment(name, artifact_location=artifacts)
        except MlflowException as error:
            # Another job made it in between; on a server no lock of ours prevents that.
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        raise ConfigError(
            f"tracking.experiment={name} was deleted in MLflow: choose another name, "
            f"or restore it with `mlflow experiments restore`"
        )
    return found.experiment_id


def _store_errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    # OSError covers files and requests' network errors; ImportError and ValueError are database drivers and bad URIs.
    return MlflowException, SQLAlchemyError, OSError, ImportError, ValueError


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _quiet_mlflow(uri: str) -> None:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if uri.startswith("http"):
        for name, value in _HTTP_PATIENCE.items():
            os.environ.setdefault(name, value)
    # Importing MLflow sets its loggers' levels, so it comes first.
    import mlflow  # noqa: F401

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
