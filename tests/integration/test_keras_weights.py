"""A run's checkpoint is loaded into plain Keras, which takes the same next steps as the run. A run begins with a file
that plain Keras wrote."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import dlrm_keras
from parallax_runner import load_into_keras
from parallax_runner.data import clicks
from tests.integration.runs import launch

BATCH = 16  # per worker, with two workers
DATA = {"dense_features": 3, "cardinalities": [500, 40], "examples": 1000, "validation_examples": 0, "seed": 1}
MODEL = {
    **{"max_rows": 100, "embedding_size": 4, "bottom_units": [8], "top_units": [8]},
    **{"optimizer": "sgd", "learning_rate": 0.1},
}
# A user's module and its configuration: the model begins with a file that plain Keras wrote.
MODULE = """
import keras
from models import dlrm_keras

def make_model(*, path, **sizes):
    if path.endswith(".keras"):
        return keras.models.load_model(path)
    model = dlrm_keras.make_model(**sizes)
    model.load_weights(path)
    return model
"""
CHOICE = """
defaults:
  - dlrm_keras
  - _self_
_target_: mine.make_model
path: ???
"""


def overrides(group: str, values: dict[str, object]) -> list[str]:
    return [f"{group}.{key}={value}".replace(" ", "").replace("'", "") for key, value in values.items()]


def test_plain_keras_takes_the_steps_that_the_run_takes(tmp_path: Path) -> None:
    arguments = [
        "experiment=dlrm_keras",
        *overrides("data", DATA),
        *overrides("model", MODEL),
        f"data.batch_size={BATCH}",
    ]
    arguments += ["train.steps=6", "ckpt.save_steps=3", "tracking=off"]
    run = launch(*arguments, cwd=tmp_path).expect_success()
    keras.utils.clear_session()
    sizes = {name: DATA[name] for name in ("dense_features", "cardinalities")}
    model = dlrm_keras.make_model(**sizes, **MODEL)
    load_into_keras(model, run.ckpt_dir / "model.ckpt-3")
    train(model, 3, 3)
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / "model.ckpt-6"))
    start = tf.train.load_checkpoint(str(run.ckpt_dir / "model.ckpt-3"))
    for variable in [*model.variables, *model.optimizer.variables]:
        expected = reader.get_tensor(variable.path)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-7, err_msg=variable.path)
    moved = {
        variable.path for variable in model.variables if (start.get_tensor(variable.path) != variable.numpy()).any()
    }
    assert moved == {variable.path for variable in model.variables}


def train(model: Any, first: int, count: int) -> None:
    """Takes steps in plain Keras, each on the batches of both workers of a run."""
    dataset = clicks.load(**DATA)
    for step in range(first, first + count):
        batch = dataset.train_batch(step * 2 * BATCH, 2 * BATCH)
        labels = batch.pop("label")
        model.train_on_batch(batch, labels)


@pytest.mark.parametrize("name", ["trained.weights.h5", "trained.keras"])
def test_a_run_begins_with_a_file_of_plain_keras(name: str, tmp_path: Path) -> None:
    """A `.keras` file also contains the state of the optimizer. SGD with momentum gives the same result for repeated
    ids as for merged ones."""
    sizes = {name: DATA[name] for name in ("dense_features", "cardinalities")}
    keras.utils.clear_session()
    trained = dlrm_keras.make_model(**sizes, **MODEL)
    if name.endswith(".keras"):
        trained.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss=trained.loss)
    train(trained, 10, 3)
    path = tmp_path / name
    trained.save(path) if name.endswith(".keras") else trained.save_weights(path)

    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(CHOICE)
    (tmp_path / "mine.py").write_text(MODULE)
    run = launch(
        *("--config-dir=conf", "model=mine", f"model.path={path}", "comm=mpi", f"data.batch_size={BATCH}"),
        *(*overrides("data", DATA), *overrides("model", MODEL), "train.steps=3", "tracking=off"),
        cwd=tmp_path,
    ).expect_success()

    keras.utils.clear_session()
    model = runpy.run_path(str(tmp_path / "mine.py"))["make_model"](path=str(path), **sizes, **MODEL)
    start = {variable.path: variable.numpy() for variable in model.variables}
    train(model, 0, 3)
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / "model.ckpt-3"))
    for variable in [*model.variables, *model.optimizer.variables]:
        expected = reader.get_tensor(variable.path)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-7, err_msg=variable.path)
    assert all((start[variable.path] != variable.numpy()).any() for variable in model.variables)
    momenta = [one for one in model.optimizer.variables if one.path.endswith("_momentum")]
    assert bool(momenta) == name.endswith(".keras")
