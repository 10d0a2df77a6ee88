"""Ranks that compute their steps in several passes, with BatchNormalization, train as plain Keras that accumulates the
gradients of all their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.clicks import load
from tests.integration.runs import launch

WORKERS, PARTS, BATCH, STEPS, RATE = 2, 3, 12, 4, 0.05
DATA: dict[str, Any] = {"dense_features": 3, "cardinalities": [20], "examples": 200, "validation_examples": 0}

LAYERS = '''
"""A training step with BatchNormalization."""

import keras
import numpy as np
import tensorflow as tf


def fixed(*shape):
    return keras.initializers.Constant(np.cos(np.arange(np.prod(shape))).reshape(shape))


def make_model():
    x = keras.Input((3,), name="dense")
    first = keras.layers.Dense(4, activation="tanh", kernel_initializer=fixed(3, 4), name="first")(x)
    norm = keras.layers.BatchNormalization(momentum=0.5, name="norm")(first)
    return keras.Model(x, keras.layers.Dense(1, kernel_initializer=fixed(4, 1), name="last")(norm), name="model")


def make_step(*, rate):
    model, optimizer = make_model(), keras.optimizers.Adam(rate, name="adam")
    optimizer.build(model.trainable_variables)

    def step(features):
        with tf.GradientTape() as tape:
            score = model(features["dense"], training=True)[:, 0]
            loss = tf.reduce_mean(tf.square(score - tf.cast(features["label"], tf.float32)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step
'''


def by_hand(make_model: Any) -> dict[str, np.ndarray]:
    """Returns the weights after plain Keras has accumulated the gradients of all parts of all ranks, with the moving
    statistics of the first rank's parts."""
    keras.backend.clear_session(free_memory=False)
    model = make_model()
    model.compile(keras.optimizers.Adam(RATE, gradient_accumulation_steps=WORKERS * PARTS), "mse")
    data, size = load(**DATA, seed=1), WORKERS * BATCH
    for step in range(STEPS):
        batch = data.train_batch(step * size, size)
        inputs, labels = (np.split(batch[name], WORKERS * PARTS) for name in ("dense", "label"))
        for number, (x, y) in enumerate(zip(inputs, labels, strict=True)):
            model.train_on_batch(x, y[:, None])
            if number == PARTS - 1:
                of_chief = [variable.numpy() for variable in model.non_trainable_variables]
        for variable, value in zip(model.non_trainable_variables, of_chief, strict=True):
            variable.assign(value)
    return {variable.path: variable.numpy() for variable in model.variables}


@pytest.mark.parametrize("mode", ["comm=mpi", "comm=hybrid"])
def test_ranks_times_parts_is_the_number_of_accumulated_gradients(mode: str, tmp_path: Path) -> None:
    (tmp_path / "layers_of_test.py").write_text(LAYERS, encoding="utf-8")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    target = f"_target_: layers_of_test.make_step\nrate: {RATE}\n"
    (tmp_path / "conf" / "model" / "layers.yaml").write_text(target, encoding="utf-8")
    data = [f"data.{key}={value}" for key, value in DATA.items()]
    size = (f"data.batch_size={BATCH}", f"cluster.workers={WORKERS}", f"train.accumulate_steps={PARTS}")
    lines = ("--config-dir", "conf", "model=layers", "data=clicks", *data, *size, f"train.steps={STEPS}", mode)
    done = launch(*lines, "train.seed=1", "tracking=off", cwd=tmp_path).expect_success()
    scope: dict[str, Any] = {}
    exec(LAYERS, scope)
    expected = by_hand(scope["make_model"])
    reader = tf.train.load_checkpoint(str(done.ckpt_dir / f"model.ckpt-{STEPS}"))
    for name, value in expected.items():
        np.testing.assert_allclose(reader.get_tensor(name), value, rtol=1e-4, atol=1e-5, err_msg=name)
