"""A model of raw strings trains as in plain Keras, and what is left of the run answers from raw strings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from mlflow import MlflowClient

from tests.integration.scripts.train_strings import ASKED
from tests.integration.test_fit import run
from tests.integration.test_fit_as_keras import expect_equal

SCRIPT = Path(__file__).parent / "scripts" / "train_strings.py"
AGES = [3, 50, 1, 80]


def trained(mode: str, cwd: Path) -> dict[str, Any]:
    done = run(SCRIPT, mode, str(cwd / f"{mode}.json"), cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((cwd / f"{mode}.json").read_text(encoding="utf-8"))
    return found


def expect_trained_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    expect_equal(found["history"], expected["history"], "history")
    assert len(found["weights"]) == len(expected["weights"])
    for ours, theirs in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_model_of_strings(tmp_path: Path) -> None:
    expected, found = trained("plain", tmp_path), trained("sharded-arrays-2", tmp_path)
    expect_trained_alike(found, expected)
    run_dir = tmp_path / "sharded-arrays-2"
    moved = tmp_path / "else" / "where"
    moved.mkdir(parents=True)
    for name in ("model.keras", "saved_model"):
        shutil.move(run_dir / name, moved / name)
    given = {name: tf.constant(values) for name, values in ASKED.items()} | {"age": tf.constant(AGES, tf.int64)}
    signature = tf.saved_model.load(str(moved / "saved_model")).signatures["serving_default"]
    inputs = {
        name: tf.cast(tensor, signature.structured_input_signature[1][name].dtype) for name, tensor in given.items()
    }
    np.testing.assert_allclose(signature(**inputs)["output"], found["predicted"], rtol=1e-9)
    loaded = keras.models.load_model(moved / "model.keras")
    # This process has Keras' usual float32, also for the weights of words.
    np.testing.assert_allclose(loaded(given), found["predicted"], rtol=1e-6)
    client = MlflowClient(f"sqlite:///{tmp_path}/runs.db")
    (logged,) = client.search_logged_models([one.experiment_id for one in client.search_experiments()])
    assert logged.status == "READY"


@pytest.mark.parametrize("mode", ["hybrid-dataset-3", "ps-arrays-2", "mpi-dataset-2"], ids="more-{}".format)
def test_a_model_of_strings_in_other_modes(mode: str, tmp_path: Path) -> None:
    expect_trained_alike(trained(mode, tmp_path), trained("plain", tmp_path))
