"""A run's models in MLflow: checkpoints that TensorFlow opens, and a model that is served without this project."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mlflow import MlflowClient
from PIL import Image

from tests import numpy_lm
from tests.integration.runs import SEQUENCE_LENGTH, Broken, Run, launch

# Loads a model with MLflow and TensorFlow, in a process that cannot import this project.
PREDICT = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("parallax_runner", "models", "horovod"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import mlflow
import numpy as np

uri, model_uri, wanted, out = sys.argv[1:]
mlflow.set_tracking_uri(uri)
model = mlflow.pyfunc.load_model(model_uri)
example = model.input_example
inputs = {name: np.array(values, example[name].dtype) for name, values in json.loads(wanted).items()}
result = {
    "example": {name: array.tolist() for name, array in example.items()},
    "inputs": model.metadata.signature.inputs.to_dict(),
    "outputs": model.metadata.signature.outputs.to_dict(),
    "of_example": model.predict(example),
    "predicted": model.predict(inputs),
}
assert not {"parallax_runner", "models", "horovod"} & set(sys.modules)
json.dump(result, open(out, "w"))
"""


def uri_of(run: Run) -> str:
    return f"sqlite:///{run.run_dir.parent / 'mlflow.db'}"


def artifacts(run: Run, folder: str) -> set[str]:
    found = set()
    for entry in MlflowClient(uri_of(run)).list_artifacts(run.summary["mlflow_run_id"], folder):
        found |= artifacts(run, entry.path) if entry.is_dir else {entry.path}
    return found


def checkpoints(run: Run) -> set[str]:
    """Returns the names of the checkpoints among the artifacts."""
    found = MlflowClient(uri_of(run)).list_artifacts(run.summary["mlflow_run_id"], "checkpoints")
    return {Path(entry.path).name for entry in found}


def downloaded(run: Run, path: str, tmp_path: Path) -> Path:
    return Path(MlflowClient(uri_of(run)).download_artifacts(run.summary["mlflow_run_id"], path, str(tmp_path)))


def variables_of(folder: Path) -> dict[str, np.ndarray]:
    """Returns all variables of the newest checkpoint that TensorFlow finds in a folder."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def predict(run: Run, tmp_path: Path, **inputs: Any) -> dict[str, Any]:
    """Returns the predictions of the run's model, in a process without this project, for `inputs` and for its input
    example."""
    out = tmp_path / "predicted.json"
    model = f"runs:/{run.summary['mlflow_run_id']}/model"
    command = [sys.executable, "-I", "-c", PREDICT, uri_of(run), model, json.dumps(inputs), str(out)]
    result = subprocess.run(command, cwd=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": "2"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def sharded(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The language model, its tables in pieces on two servers; every checkpoint is logged, one is kept."""
    return launch(
        *lm,
        "comm=hybrid",
        "cluster.servers=2",
        "partition=fixed",
        "partition.num=3",
        "train.steps=12",
        "ckpt.save_steps=3",
        "ckpt.keep=1",
        "tracking.log_checkpoints=all",
        cwd=tmp_path_factory.mktemp("sharded"),
    ).expect_success()


@pytest.fixture(scope="module")
def served(sharded: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outputs of its model for one example, and for the examples that come with it."""
    return predict(sharded, tmp_path_factory.mktemp("served"), words=[[1, 2, 3, 4, 5]])


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Linear regression with steps so large that it gets worse and worse: the first validation is the best."""
    return launch(
        "model=simple",
        "comm=local",
        "optimizer.learning_rate=1.6",
        "train.steps=12",
        "train.validate_steps=4",
        "tracking.log_checkpoints=best",
        cwd=tmp_path_factory.mktemp("best"),
    ).expect_success()


@pytest.fixture(scope="module")
def none(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that records only numbers."""
    cwd = tmp_path_factory.mktemp("none")
    return launch(
        "model=simple", "comm=local", "train.steps=3", "tracking.log_checkpoints=none", cwd=cwd
    ).expect_success()


def test_the_served_language_model_says_what_its_checkpoint_says(
    sharded: Run, served: dict[str, Any], tmp_path: Path
) -> None:
    words = np.array(served["example"]["words"], np.int32)
    assert words.shape == (2, SEQUENCE_LENGTH)
    variables = variables_of(downloaded(sharded, "checkpoints/model.ckpt-12", tmp_path))
    expected = numpy_lm.outputs(variables, words)
    assert served["of_example"]["next_word"] == expected["next_word"].tolist()
    np.testing.assert_allclose(served["of_example"]["log_probability"], expected["log_probability"], rtol=1e-5)


def test_its_signature_has_what_serving_needs(served: dict[str, Any]) -> None:
    (words,) = served["inputs"]
    assert words["name"] == "words"
    assert words["tensor-spec"] == {"dtype": "int32", "shape": [-1, SEQUENCE_LENGTH]}
    assert [one["name"] for one in served["outputs"]] == ["next_word", "log_probability"]
    assert np.shape(served["predicted"]["next_word"]) == (1, SEQUENCE_LENGTH)


def test_shards_are_merged_and_training_is_gone(sharded: Run, tmp_path: Path) -> None:
    folder = downloaded(sharded, "model", tmp_path)
    stored = dict(tf.train.list_variables(str(folder / "saved_model" / "variables" / "variables")))
    inference = {"embedding", "softmax_w", "softmax_b", "lstm/kernel", "lstm/bias", "lstm/projection"}
    assert set(stored) == inference
    assert stored["embedding"] == [200, 8]
    assert set(variables_of(sharded.ckpt_dir)) > inference
    requirements = (folder / "requirements.txt").read_text().split()
    assert [line.split("==")[0] for line in requirements] == ["mlflow", "tensorflow"]
    assert "parallax" not in (folder / "MLmodel").read_text()


def test_all_checkpoints_are_there_also_those_that_keep_deletes(sharded: Run, tmp_path: Path) -> None:
    assert {path.name for path in sharded.ckpt_dir.glob("*.index")} == {"model.ckpt-12.index"}
    assert checkpoints(sharded) == {"model.ckpt-3", "model.ckpt-6", "model.ckpt-9", "model.ckpt-12"}
    steps = {
        int(variables_of(downloaded(sharded, f"checkpoints/{name}", tmp_path))["global_step"])
        for name in checkpoints(sharded)
    }
    assert steps == {3, 6, 9, 12}
    assert not list((sharded.run_dir / ".outbox").iterdir())  # all is sent, so nothing waits


def test_a_downloaded_checkpoint_resumes(sharded: Run, lm: tuple[str, ...], tmp_path: Path) -> None:
    folder = downloaded(sharded, "checkpoints/model.ckpt-6", tmp_path)
    run = launch(
        *lm, "comm=local", "train.steps=8", "tracking=off", f"ckpt.resume={folder}", cwd=tmp_path / "again"
    ).expect_success()
    assert (run.summary["first_step"], run.summary["steps"]) == (6, 8)


def test_the_best_is_logged_and_served(best: Run, tmp_path: Path) -> None:
    assert checkpoints(best) == {"model.ckpt-4"}
    variables = variables_of(downloaded(best, "checkpoints/model.ckpt-4", tmp_path))
    served = predict(best, tmp_path, x=[0.5, -2.0, 0.0])
    expected = variables["w"] * np.array([0.5, -2.0, 0.0], np.float32) + variables["b"]
    np.testing.assert_allclose(served["predicted"]["prediction"], expected, rtol=1e-6)
    assert best.summary["saved_model"] == str(best.run_dir / "saved_model")


def test_by_default_the_last_is_logged(tracked: Run, tmp_path: Path) -> None:
    assert checkpoints(tracked) == {"model.ckpt-20"}
    logged = variables_of(downloaded(tracked, "checkpoints/model.ckpt-20", tmp_path))
    np.testing.assert_equal(logged, variables_of(tracked.ckpt_dir))
    assert "model/MLmodel" in artifacts(tracked, "model")


def test_none_is_none(none: Run) -> None:
    assert checkpoints(none) == set()
    assert artifacts(none, "model") == set()
    assert not (none.run_dir / "saved_model").exists()


def test_a_run_that_was_stopped_has_its_last_one(interrupted: Broken) -> None:
    run = interrupted.run
    assert checkpoints(run) == {Path(run.summary["ckpt_path"]).name}


def test_loss_and_throughput_are_images(tracked: Run, tmp_path: Path) -> None:
    assert artifacts(tracked, "plots") == {"plots/loss.png", "plots/throughput.png"}
    images = list(downloaded(tracked, "plots", tmp_path).iterdir())
    assert len(images) == 2
    for path in images:
        with Image.open(path) as image:
            image.load()
            assert len(image.getcolors(100_000)) > 2


def test_a_model_that_cannot_be_served_has_been_trained(tmp_path: Path) -> None:
    model = (
        "import tensorflow.compat.v1 as tf\n"
        "from models import simple\n"
        "def build(features, optimizer):\n"
        "    return simple.build(features, optimizer) | {'outputs': {'one': tf.constant(1.0)}}\n"
    )
    (tmp_path / "stubborn.py").write_text(model)
    run = launch(
        "model=simple", "model._target_=stubborn.build", "comm=local", "train.steps=3", cwd=tmp_path
    ).expect_success()
    assert run.summary["saved_model"] is None
    assert "no feature" in run.summary["saved_model_error"]
    assert "SavedModel was not written" in (run.run_dir / "logs" / "driver.log").read_text()
    assert checkpoints(run) == {"model.ckpt-3"}
