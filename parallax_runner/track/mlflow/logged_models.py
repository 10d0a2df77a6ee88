"""Makes the logged model of a run's SavedModel. MLflow 3 lists logged models in a tab of their own.

A logged model is identified by its run and its name, which contains the step, so sending a model twice creates it only
once.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.track.mlflow import artifacts
from parallax_runner.track.mlflow.model_points import ModelPoint
from parallax_runner.track.mlflow.store import Opened

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Metric

log = logging.getLogger(__name__)

# Error codes of a store that does not support logged models.
_UNKNOWN_CALL = ("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED", "FEATURE_DISABLED")


def step_in(checkpoint: str) -> int | None:
    """Returns the step in a checkpoint's name, such as `model.ckpt-300`, or None if the name contains no step."""
    found = re.search(r"-(\d+)$", checkpoint)
    return int(found[1]) if found else None


def find_or_create(client: MlflowClient, run: Opened, checkpoint: str) -> LoggedModel | None:
    """Returns the logged model of a checkpoint. Returns None if the checkpoint's name contains no step, or if the store
    is older than MLflow 3, which a warning says."""
    from mlflow.exceptions import MlflowException

    step = step_in(checkpoint)
    if step is None:
        return None
    try:
        return _find(client, run, step) or _create(client, run, step, checkpoint)
    except (MlflowException, NotImplementedError) as error:
        if isinstance(error, MlflowException) and error.error_code not in _UNKNOWN_CALL:
            raise
    log.warning(
        "this MLflow store does not support logged models, which need MLflow 3. The model is logged only as an artifact"
    )
    return None


def complete(client: MlflowClient, run: Opened, model: LoggedModel, folder: Path, points: Sequence[ModelPoint]) -> None:
    """Adds the MLflow model in `folder` and its metrics, and marks the logged model as ready and as an output of its
    run. `mlflow.pyfunc.load_model("models:/ID")` can then load the model."""
    upload = functools.partial(client.log_model_artifacts, model.model_id, str(folder))
    artifacts.add_folder(folder, model.artifact_location, None, upload)
    _link(client, run, model)
    if points:
        client.log_batch(run.run_id, metrics=[_metric(one, model) for one in points])
    if model.status != "READY":
        client.finalize_logged_model(model.model_id, "READY")


def _find(client: MlflowClient, run: Opened, step: int) -> LoggedModel | None:
    wanted = f"source_run_id = '{run.run_id}' AND name = '{_name(step)}'"
    found = client.search_logged_models([run.experiment_id], filter_string=wanted, max_results=1)
    return found[0] if found else None


def _create(client: MlflowClient, run: Opened, step: int, checkpoint: str) -> LoggedModel:
    return client.create_logged_model(
        run.experiment_id,
        name=_name(step),
        source_run_id=run.run_id,
        tags={"parallax.checkpoint": checkpoint},
        params={"step": str(step)},
    )


def _name(step: int) -> str:
    return f"step-{step}"


def _link(client: MlflowClient, run: Opened, model: LoggedModel) -> None:
    """Makes the model an output of its run. MLflow would list a second link, too."""
    from mlflow.entities import LoggedModelOutput

    outputs = client.get_run(run.run_id).outputs
    linked = {output.model_id for output in outputs.model_outputs} if outputs else set()
    if model.model_id not in linked:
        client.log_outputs(run.run_id, [LoggedModelOutput(model.model_id, int(model.params["step"]))])


def _metric(measured: ModelPoint, model: LoggedModel) -> Metric:
    from mlflow.entities import Metric

    point, dataset = measured
    return Metric(
        point.key,
        point.value,
        point.time_ms,
        point.step,
        model_id=model.model_id,
        dataset_name=None if dataset is None else dataset.name,
        dataset_digest=None if dataset is None else dataset.digest,
    )
