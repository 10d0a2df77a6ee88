"""Copies a checkpoint that waits in a run's outbox to the artifacts of its MLflow run."""

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
    """Moves `fields["folder"]`, which holds one checkpoint, to `checkpoints/` under its own name, and makes a logged
    model of it.

    A folder that is not there any more has been sent.
    """
    folder = Path(fields["folder"])
    if folder.is_dir():
        inside = f"{ARTIFACT_FOLDER}/{folder.name}"
        client.log_artifacts(run_id, str(folder), artifact_path=inside)
        if logged_models is not None:
            logged_models.add_checkpoint(folder.name, f"runs:/{run_id}/{inside}")
        shutil.rmtree(folder)
