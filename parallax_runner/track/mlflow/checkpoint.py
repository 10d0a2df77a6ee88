"""Copies a checkpoint that waits in a run's outbox to the artifacts of its MLflow run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACT_FOLDER = "checkpoints"


def send(client: MlflowClient, run_id: str, fields: Mapping[str, Any]) -> None:
    """Moves `fields["folder"]`, which holds one checkpoint, to `checkpoints/` under its own name.

    A folder that is not there any more has been sent.
    """
    folder = Path(fields["folder"])
    if folder.is_dir():
        client.log_artifacts(run_id, str(folder), artifact_path=f"{ARTIFACT_FOLDER}/{folder.name}")
        shutil.rmtree(folder)
