"""Moves a checkpoint from a run's outbox to the artifacts of the MLflow run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.track.mlflow import artifacts

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACT_FOLDER = "checkpoints"


def send(client: MlflowClient, run_id: str, folder: Path) -> None:
    """Moves `folder`, which contains one checkpoint, to `checkpoints/` in the artifacts.

    If the artifacts are in a folder of the same file system, they are hard links, so the checkpoint is stored once.
    Does nothing if the folder does not exist, because the checkpoint has already been sent in that case.
    """
    if not folder.is_dir():
        return
    artifact_path = f"{ARTIFACT_FOLDER}/{folder.name}"
    local = artifacts.local_folder(client.get_run(run_id).info.artifact_uri)
    if local is None:
        client.log_artifacts(run_id, str(folder), artifact_path=artifact_path)
    else:
        shutil.copytree(folder, local / artifact_path, copy_function=artifacts.replace_by_link, dirs_exist_ok=True)
    shutil.rmtree(folder)
