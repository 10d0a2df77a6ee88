"""A SavedModel and a checkpoint become artifacts of a run, once however often they are sent."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mlflow import MlflowClient

from parallax_runner.track.mlflow import checkpoint
from parallax_runner.track.mlflow.journal import Header, Journal
from parallax_runner.track.mlflow.model import send
from parallax_runner.track.mlflow.store import Opened
from tests.single.export.serving import DATASET, WIDTH, Features, exported, train


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    folder = tmp_path_factory.mktemp("store")
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    client.create_experiment("e", artifact_location=(folder / "mlartifacts").as_uri())
    return client


@pytest.fixture
def run(client: MlflowClient) -> Opened:
    info = client.create_run(client.get_experiment_by_name("e").experiment_id).info
    return Opened(info.run_id, info.experiment_id)


@pytest.fixture
def run_id(run: Opened) -> str:
    return run.run_id


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal without metrics."""
    return Journal(tmp_path / "journal.jsonl", Header("fake:", "e", None)).path


def model(features: Features) -> dict[str, Any]:
    """Gives a vector, a scalar, and a tensor of unknown rank."""
    y = tf.reduce_sum(features["x"] * tf.get_variable("weights", [WIDTH]), axis=1)
    loss = tf.reduce_mean(tf.square(y - features["y"]))
    shapeless = tf.placeholder_with_default(y, None)
    return {"loss": loss, "train_op": train(loss), "outputs": {"y": y, "mean": tf.reduce_mean(y), "any": shapeless}}


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, _ = exported(model, tmp_path_factory.mktemp("run"))
    return folder


def artifacts(client: MlflowClient, run_id: str, folder: str | None = None) -> set[str]:
    found = set()
    for entry in client.list_artifacts(run_id, folder):
        found |= artifacts(client, run_id, entry.path) if entry.is_dir else {entry.path}
    return found


def test_mlflow_loads_what_was_sent(client: MlflowClient, run: Opened, journal: Path, saved_model: Path) -> None:
    send(client, run, saved_model, journal)
    loaded = mlflow.pyfunc.load_model(client.download_artifacts(run.run_id, "model"))
    example = loaded.input_example
    np.testing.assert_array_equal(example["x"], DATASET.validation_batch(0, 2)["x"])
    predicted = loaded.predict(example)
    weights = tf.train.load_variable(str(saved_model / "variables" / "variables"), "weights")
    np.testing.assert_allclose(predicted["y"], example["x"] @ weights, rtol=1e-5)
    np.testing.assert_allclose(predicted["mean"], [np.mean(example["x"] @ weights)], rtol=1e-5)
    (x,) = loaded.metadata.signature.inputs.inputs
    assert (x.name, x.shape, x.type) == ("x", (-1, WIDTH), np.dtype("float32"))
    # MLflow cannot say that a rank is unknown.
    assert loaded.metadata.signature.outputs is None


def test_it_is_a_logged_model_too(
    client: MlflowClient, run: Opened, journal: Path, saved_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        send(client, run, saved_model, journal)
    (output,) = client.get_run(run.run_id).outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert (model.name, model.status) == ("step-3", "READY")
    # `mlflow.set_tracking_uri` would stay set for later tests.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    loaded = mlflow.pyfunc.load_model(f"models:/{model.model_id}")
    of_run = mlflow.pyfunc.load_model(f"runs:/{run.run_id}/model")
    example = loaded.input_example
    np.testing.assert_array_equal(loaded.predict(example)["y"], of_run.predict(example)["y"])


def test_sent_twice_it_is_there_once(client: MlflowClient, run: Opened, journal: Path, saved_model: Path) -> None:
    send(client, run, saved_model, journal)
    once = artifacts(client, run.run_id)
    send(client, run, saved_model, journal)
    assert artifacts(client, run.run_id) == once
    assert {path.name for path in saved_model.parent.iterdir()} == {"ckpt", "saved_model"}


def test_a_file_system_without_links_is_copied_from(
    client: MlflowClient, run: Opened, journal: Path, saved_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    send(client, run, saved_model, journal)
    assert "model/saved_model/saved_model.pb" in artifacts(client, run.run_id)


def test_the_users_own_project_is_not_taken_for_the_models(
    client: MlflowClient, run: Opened, journal: Path, saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("uv.lock", "pyproject.toml"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    send(client, run, saved_model, journal)
    assert {path for path in artifacts(client, run.run_id) if "/" not in path.removeprefix("model/")} == {
        *("model/MLmodel", "model/conda.yaml", "model/python_env.yaml", "model/requirements.txt"),
        *("model/input_example.json", "model/serving_input_example.json"),
    }


def test_one_that_is_gone_is_refused(client: MlflowClient, run: Opened, journal: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        send(client, run, tmp_path / "saved_model", journal)


def test_a_checkpoint_leaves_the_outbox_when_it_is_sent(client: MlflowClient, run_id: str, tmp_path: Path) -> None:
    folder = tmp_path / "model.ckpt-3"
    folder.mkdir()
    (folder / "model.ckpt-3.index").write_text("i")
    checkpoint.send(client, run_id, folder)
    assert not folder.exists()
    checkpoint.send(client, run_id, folder)
    assert artifacts(client, run_id) == {"checkpoints/model.ckpt-3/model.ckpt-3.index"}
