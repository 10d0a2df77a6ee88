"""A run's checkpoint is loaded into plain Keras, which takes the same next steps as the run."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
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
    dataset = clicks.load(**DATA)
    for step in range(3, 6):
        batch = dataset.train_batch(step * 2 * BATCH, 2 * BATCH)
        labels = batch.pop("label")
        model.train_on_batch(batch, labels)
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / "model.ckpt-6"))
    start = tf.train.load_checkpoint(str(run.ckpt_dir / "model.ckpt-3"))
    for variable in [*model.variables, *model.optimizer.variables]:
        expected = reader.get_tensor(variable.path)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-7, err_msg=variable.path)
    moved = {
        variable.path for variable in model.variables if (start.get_tensor(variable.path) != variable.numpy()).any()
    }
    assert moved == {variable.path for variable in model.variables}
