"""An evaluation draws the random numbers of plain Keras, and leaves the seeds as they are."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.validation import check_validation_loss
from parallax_runner.graph.traced.capture_step import capture_step

BATCH = 6
FEATURES = {"x": ((None, 3), "float32"), "y": ((None, 1), "float32")}


class Shuffled(keras.metrics.Mean):
    """Draws several times for each batch, from one generator, as metrics of ranking do to break ties."""

    def __init__(self, draws: int) -> None:
        super().__init__(name="shuffled")
        self.draws, self.seed_generator = draws, keras.random.SeedGenerator(5)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        for _ in range(self.draws):
            y_pred = y_pred * keras.random.uniform(keras.ops.shape(y_pred), seed=self.seed_generator)
        super().update_state(y_pred)


class Sampled(keras.layers.Layer):
    """Draws twice in evaluation, from Keras' global generator: `call` has no other one."""

    def call(self, x: Any) -> Any:
        return x * keras.random.uniform(keras.ops.shape(x)) * keras.random.uniform(keras.ops.shape(x))


def batch() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {"x": draw.normal(size=[BATCH, 3]).astype("float32"), "y": draw.normal(size=[BATCH, 1]).astype("float32")}


def shuffled(draws: int) -> Any:
    inputs = keras.Input([3], name="x")
    made = keras.Model(inputs, keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(inputs))
    made.compile("sgd", "mse", metrics=[Shuffled(draws)])
    return made


def sampled() -> Any:
    inputs = keras.Input([3], name="x")
    made = keras.Model(inputs, Sampled()(keras.layers.Dense(1, kernel_initializer="ones")(inputs)))
    made.compile("sgd", "mse")
    return made


def evaluated(make: Any) -> list[dict[str, float]]:
    """Returns the metrics of the same batch, evaluated twice in a captured graph."""
    single = capture_step(make, FEATURES, seed=7, options={"labels": "y"})
    check_validation_loss(single)
    assert single.validation_metrics is not None
    sums = single.validation_metrics
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        session.run([variable.initializer for variable in single.variables])
        fed = {tensor: batch()[name] for name, tensor in single.validation_features.items()}
        found = [session.run(sums.tensors, fed) for _ in range(2)]
    return [sums.results([np.asarray(one, "float64") for one in each]) for each in found]


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_each_draw_of_a_batch_has_the_seed_of_plain_keras(draws: int) -> None:
    first, again = evaluated(lambda: shuffled(draws))
    keras.utils.clear_session()
    expected = shuffled(draws).evaluate(*batch().values(), batch_size=BATCH, verbose=0, return_dict=True)
    assert first == pytest.approx(expected, rel=1e-6)
    assert again == first


def test_a_layer_that_draws_twice_can_be_evaluated() -> None:
    first, again = evaluated(sampled)
    assert again == first
    assert np.isfinite(first["loss"])
