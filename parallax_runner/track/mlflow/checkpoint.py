"""Moves a checkpoint from a run's outbox to the artifacts of the MLflow run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.files.link_or_copy import link_or_copy

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
    artifacts = _local_artifacts(client, run_id)
    if artifacts is None:
        client.log_artifacts(run_id, str(folder), artifact_path=artifact_path)
    else:
        shutil.copytree(folder, artifacts / artifact_path, copy_function=_replace_by_link, dirs_exist_ok=True)
    shutil.rmtree(folder)


def _local_artifacts(client: MlflowClient, run_id: str) -> Path | None:
    """Returns the folder with the artifacts of the run, or None if they are not in a folder of this machine."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    repository = get_artifact_repository(client.get_run(run_id).info.artifact_uri)
    return Path(repository.artifact_dir) if isinstance(repository, LocalArtifactRepository) else None


def _replace_by_link(file: str, target: str) -> None:
    """Links or copies `file` to `target`. A file that an interrupted attempt left at `target` is removed first: a copy
    could be incomplete."""
    Path(target).unlink(missing_ok=True)
    link_or_copy(file, target)
