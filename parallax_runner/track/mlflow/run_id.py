"""Stores which MLflow run belongs to a run directory, in a small file that the driver writes as soon as the store has
created the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parallax_runner.config.trackers import RUN_ID_KEY
from parallax_runner.files.credentials import masked_uri
from parallax_runner.files.plain import object_in
from parallax_runner.files.whole import write_whole

FILE_NAME = "mlflow_run.json"


def read_run(run_dir: Path) -> dict[str, Any]:
    """Returns `run_id`, `uri` and `experiment_id`, or an empty dict while they are unknown."""
    return object_in(run_dir / FILE_NAME)


def read_run_id(run_dir: Path) -> str | None:
    """Returns the MLflow run's id, or None while the id is unknown."""
    return read_run(run_dir).get("run_id")


def write_run(run_dir: Path, *, run_id: str, uri: str, experiment_id: str) -> None:
    """Writes the file. The chief reads it to add the id to checkpoints. The jobs of a sweep and users also read it."""
    replace_json(run_dir / FILE_NAME, {"run_id": run_id, "uri": masked_uri(uri), "experiment_id": experiment_id})


def name_run(summary: Path, run_id: str) -> None:
    """Adds the MLflow run's id to a summary that was written before the id was known."""
    fields = object_in(summary)
    if fields and fields.get(RUN_ID_KEY) is None:
        write_whole(summary, json.dumps(fields | {RUN_ID_KEY: run_id}, indent=1) + "\n")


def forget_run(run_dir: Path) -> None:
    """Deletes the file when a new run starts in the directory of an earlier run."""
    (run_dir / FILE_NAME).unlink(missing_ok=True)


def replace_json(path: Path, fields: Any) -> None:
    """Writes a small JSON file atomically, since other processes may read the file at any time."""
    write_whole(path, json.dumps(fields) + "\n")
