"""Creates an MLflow model from a run's SavedModel. To load the model, `mlflow.pyfunc.load_model` needs TensorFlow but
not this package.

MLflow's own TensorFlow flavor can load a SavedModel by tags and signature, but offers no way to log a SavedModel.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax_runner.files.link_or_copy import link_or_copy
from parallax_runner.files.regular import read_regular
from parallax_runner.files.whole import write_whole
from parallax_runner.track.mlflow import artifacts, logged_models
from parallax_runner.track.mlflow.model_points import points_of_model
from parallax_runner.track.mlflow.store import Opened

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.types import Schema

ARTIFACT_FOLDER = "model"
SAVED_MODEL = "saved_model"
# export/saved_model.py writes this file.
DESCRIPTION = Path("assets.extra") / "serving.json"


def send(client: MlflowClient, run: Opened, saved_model: Path, journal: Path) -> None:
    """Adds a SavedModel to the artifacts of a run, as the model `runs:/RUN_ID/model`, and as a logged model with the
    metrics that the journal has of its step.

    Raises ValueError if there is no SavedModel.
    """
    if not (saved_model / DESCRIPTION).is_file():
        raise ValueError(f"{saved_model} does not exist, or is not a SavedModel that parallax_runner wrote")
    with tempfile.TemporaryDirectory(prefix=".mlflow_model", dir=saved_model.parent) as beside:
        folder = Path(beside) / ARTIFACT_FOLDER
        checkpoint = json.loads(read_regular(saved_model / DESCRIPTION))["checkpoint"]
        model = logged_models.find_or_create(client, run, checkpoint)
        write_model(saved_model, folder, run_id=run.run_id, model_id=None if model is None else model.model_id)
        uri = client.get_run(run.run_id).info.artifact_uri
        upload = functools.partial(client.log_artifacts, run.run_id, str(folder), artifact_path=ARTIFACT_FOLDER)
        artifacts.add_folder(folder, uri, ARTIFACT_FOLDER, upload)
        if model is not None:
            points = points_of_model(journal, int(model.params["step"]))
            logged_models.complete(client, run, model, folder, points)


def write_model(saved_model: Path, folder: Path, *, run_id: str | None = None, model_id: str | None = None) -> None:
    """Writes an MLflow model with a signature and an input example to the new folder `folder`. Hard-links the
    SavedModel's files if `folder` is on the same file system."""
    import mlflow
    import numpy as np
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature

    described = json.loads(read_regular(saved_model / DESCRIPTION))
    model = Model(
        artifact_path=ARTIFACT_FOLDER,
        run_id=run_id,
        model_id=model_id,
        metadata={"checkpoint": described["checkpoint"]},
    )
    model.add_flavor(
        "tensorflow",
        code=None,
        model_type="tf1-estimator",
        saved_model_dir=SAVED_MODEL,
        meta_graph_tags=described["tags"],
        signature_def_key=described["signature"],
    )
    example = {name: np.array(described["example"][name], spec["dtype"]) for name, spec in described["inputs"].items()}
    with tempfile.TemporaryDirectory() as no_project:
        pyfunc.save_model(
            folder,
            loader_module="mlflow.tensorflow",
            mlflow_model=model,
            signature=ModelSignature(_schema(described["inputs"]), _schema(described["outputs"])),
            input_example=example,
            pip_requirements=[f"mlflow=={mlflow.__version__}"],
            # Without this argument, MLflow would treat a lock file in the current folder as the model's lock file.
            uv_project_path=no_project,
        )
    _require(folder, f"tensorflow=={described['tensorflow']}")
    shutil.copytree(saved_model, folder / SAVED_MODEL, copy_function=link_or_copy)


def _require(folder: Path, requirement: str) -> None:
    """Adds a package to a model's `requirements.txt` and `conda.yaml`.

    If MLflow itself receives a requirement whose package is installed under another name, such as tensorflow-cpu,
    MLflow imports the package to compare versions. Importing TensorFlow takes seconds and prints lines about the
    machine, so this function adds the requirement afterwards.
    """
    import yaml

    requirements, conda = folder / "requirements.txt", folder / "conda.yaml"
    write_whole(requirements, f"{requirements.read_text(encoding='utf-8').rstrip()}\n{requirement}")
    environment = yaml.safe_load(conda.read_text(encoding="utf-8"))
    (pip,) = [entry for entry in environment["dependencies"] if isinstance(entry, dict)]
    pip["pip"].append(requirement)
    write_whole(conda, yaml.safe_dump(environment, default_flow_style=False))


def _schema(specs: Mapping[str, Any]) -> Schema | None:
    """Returns the schema of named tensors, or None if the rank of a tensor is unknown, which MLflow cannot express."""
    import numpy as np
    from mlflow.types import Schema, TensorSpec

    if any(spec["shape"] is None for spec in specs.values()):
        return None
    return Schema([TensorSpec(np.dtype(spec["dtype"]), spec["shape"], name) for name, spec in specs.items()])
