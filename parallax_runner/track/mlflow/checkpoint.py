"""Moves a checkpoint from a run's outbox to the artifacts of the MLflow run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACT_FOLDER = "checkpoints"


def send(client: MlflowClient, run_id: str, folder: Path) -> None:
    """Moves `folder`, which contains one checkpoint, to `checkpoints/` in the artifacts.

    Does nothing if the folder does not exist, because the checkpoint has already been sent in that case.
    """
    if folder.is_dir():
        client.log_artifacts(run_id, str(folder), artifact_path=f"{ARTIFACT_FOLDER}/{folder.name}")
        shutil.rmtree(folder)
