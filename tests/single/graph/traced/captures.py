"""Models and steps that the tests of the capture share."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step

BATCH, ROWS = 4, 50
FEATURES = {"ids": ((BATCH,), "int32"), "x": ((BATCH, 3), "float32"), "y": ((BATCH,), "float32")}
LABELS = {"labels": "y"}


def model(rows: int = ROWS, **optimizer: Any) -> Any:
    """A table and two dense layers, with Adam."""
    ids, x = keras.Input((), dtype="int32", name="ids"), keras.Input((3,), name="x")
    hidden = keras.layers.Dense(4, activation="tanh", name="hidden")(
        keras.layers.Embedding(rows, 3, name="table")(ids) * x
    )
    made = keras.Model([ids, x], keras.layers.Dense(1, name="out")(hidden))
    made.compile(optimizer=keras.optimizers.Adam(0.01, **optimizer), loss="mse")
    return made


def captured(make: Any, options: dict[str, Any] = LABELS, features: Any = FEATURES) -> SingleDeviceGraph:
    """With the seed that all tests have."""
    return capture_step(make, features, seed=7, options=options)


def step_of(loss_of: Any) -> Any:
    """A function that makes a step which trains `weights` by what `loss_of` makes of them and a batch."""

    def make() -> Any:
        weights = tf.Variable(tf.ones([3, 1]), name="weights")

        def step(batch: dict[str, Any]) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(weights, batch)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        return step

    return make


def squares(weights: Any, batch: dict[str, Any]) -> Any:
    """The loss of a linear model."""
    return tf.reduce_mean(tf.square((batch["x"] @ weights)[:, 0] - batch["y"]))


def dict_model() -> Any:
    """The inputs are a dict, which Keras would fill in the order of the keys."""
    ids, x = keras.Input((), dtype="int32", name="ids"), keras.Input((3,), name="x")
    product = keras.layers.Embedding(ROWS, 3, name="table")(ids) * x
    made = keras.Model({"ids": ids, "x": x}, keras.layers.Dense(1, name="out")(product))
    made.compile(optimizer="sgd", loss="mse")
    return made
