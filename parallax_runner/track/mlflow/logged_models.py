"""Manages MLflow 3's logged models: one model for each step whose checkpoint is logged as an artifact, with the metrics
of that step.

A logged model is identified by its run and its name, which contains the step, so sending a model twice creates it only
once. Stores older than MLflow 3 do not support logged models. The log reports this once, and nothing else changes.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from parallax_runner.files.whole import write_whole
from parallax_runner.track.mlflow.store import Point

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# A file in the logged model that contains the URI of the checkpoint's files.
POINTER = "checkpoint.json"
# Error codes of a store that does not support logged models.
_UNKNOWN_CALL = ("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED", "FEATURE_DISABLED")


def step_in(checkpoint: str) -> int | None:
    """Returns the step in a checkpoint's name, such as `model.ckpt-300`, or None if the name contains no step."""
    found = re.search(r"-(\d+)$", checkpoint)
    return int(found[1]) if found else None


class LoggedModels:
    """The logged models of one run. Each method can safely be called twice, and does nothing if the store does not
    support logged models."""

    def __init__(self, client: MlflowClient, run_id: str, experiment_id: str) -> None:
        self._client, self._run_id, self._experiment_id = client, run_id, experiment_id
        self._exist = True
        self._ids: dict[int, str] = {}

    def add_checkpoint(self, checkpoint: str, uri: str) -> None:
        """Creates the logged model of a checkpoint, with a small file that contains the checkpoint's URI. The file is
        omitted if the model already contains artifacts, such as the model for serving."""
        model = self._made(checkpoint)
        if model is None:
            return
        if not self._client.list_logged_model_artifacts(model.model_id):
            with tempfile.TemporaryDirectory() as folder:
                pointer = Path(folder) / POINTER
                told = {"checkpoint": checkpoint, "uri": uri}
                write_whole(pointer, json.dumps(told, indent=1) + "\n")
                self._client.log_model_artifact(model.model_id, str(pointer))
        self._close(model, checkpoint)

    def id_for_serving(self, checkpoint: str) -> str | None:
        """Returns the id of a checkpoint's logged model, which is created if needed. Returns None if the store does not
        support logged models."""
        model = self._made(checkpoint)
        return None if model is None else str(model.model_id)

    def add_model(self, checkpoint: str, folder: Path) -> None:
        """Adds the MLflow model in `folder` to the checkpoint's logged model. `mlflow.pyfunc.load_model("models:/ID")`
        can then load the model."""
        model = self._made(checkpoint)
        if model is not None:
            self._client.log_model_artifacts(model.model_id, str(folder))
            self._close(model, checkpoint)

    def log(self, step: int, points: Sequence[Point], datasets: Mapping[str, Mapping[str, str]]) -> None:
        """Adds points to the logged model of a step, if that step has a logged model. Validation metrics refer to
        `datasets["validation"]`, and all other metrics refer to `datasets["training"]`."""
        from mlflow.entities import Metric

        model_id = self._ids.get(step) or self._found(step)
        if model_id is None or not points:
            return
        metrics = []
        for point in points:
            dataset = datasets.get("validation" if point.key.startswith("validation/") else "training", {})
            of_model = {
                "model_id": model_id,
                "dataset_name": dataset.get("name"),
                "dataset_digest": dataset.get("digest"),
            }
            metrics.append(Metric(point.key, point.value, point.time_ms, point.step, **of_model))
        self._client.log_batch(self._run_id, metrics=metrics)

    def _found(self, step: int) -> str | None:
        model = self._search(step)
        if model is not None:
            self._ids[step] = model.model_id
        return self._ids.get(step)

    def _made(self, checkpoint: str) -> LoggedModel | None:
        step = step_in(checkpoint)
        if step is None:
            return None
        model = self._search(step)
        if model is None and self._exist:
            model = self._call(
                lambda: self._client.create_logged_model(
                    self._experiment_id,
                    name=f"step-{step}",
                    source_run_id=self._run_id,
                    tags={"parallax.checkpoint": checkpoint},
                    params={"step": str(step)},
                )
            )
        if model is not None:
            self._ids[step] = model.model_id
        return model

    def _search(self, step: int) -> LoggedModel | None:
        wanted = f"source_run_id = '{self._run_id}' AND name = 'step-{step}'"
        found = self._call(
            lambda: self._client.search_logged_models([self._experiment_id], filter_string=wanted, max_results=1)
        )
        return found[0] if found else None

    def _close(self, model: LoggedModel, checkpoint: str) -> None:
        """Marks the model as ready, and as an output of its run."""
        from mlflow.entities import LoggedModelOutput

        step = step_in(checkpoint)
        assert step is not None
        outputs = self._client.get_run(self._run_id).outputs
        if model.model_id not in {output.model_id for output in (outputs.model_outputs if outputs else ())}:
            self._client.log_outputs(self._run_id, [LoggedModelOutput(model.model_id, step)])
        if model.status != "READY":
            self._client.finalize_logged_model(model.model_id, "READY")

    def _call(self, ask: Callable[[], Result]) -> Result | None:
        from mlflow.exceptions import MlflowException

        if not self._exist:
            return None
        try:
            return ask()
        except (MlflowException, NotImplementedError) as error:
            if isinstance(error, MlflowException) and error.error_code not in _UNKNOWN_CALL:
                raise
            self._exist = False
            log.warning(
                "this MLflow store does not support logged models, which need MLflow 3. Checkpoints are logged only as "
                "artifacts"
            )
            return None
