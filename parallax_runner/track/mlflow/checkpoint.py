"""Moves a checkpoint from a run's outbox to the artifacts of the MLflow run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from parallax_runner.track.mlflow.logged_models import LoggedModels

ARTIFACT_FOLDER = "checkpoints"


def send(
    client: MlflowClient, run_id: str, fields: Mapping[str, Any], logged_models: LoggedModels | None = None
) -> None:
    """Moves the folder `fields["folder"]`, which contains one checkpoint, to `checkpoints/` in the artifacts, and adds
    a logged model for the checkpoint.

    Does nothing if the folder does not exist, because the checkpoint has already been sent in that case.
    """
    folder = Path(fields["folder"])
    if folder.is_dir():
        inside = f"{ARTIFACT_FOLDER}/{folder.name}"
        client.log_artifacts(run_id, str(folder), artifact_path=inside)
        if logged_models is not None:
            logged_models.add_checkpoint(folder.name, f"runs:/{run_id}/{inside}")
        shutil.rmtree(folder)
