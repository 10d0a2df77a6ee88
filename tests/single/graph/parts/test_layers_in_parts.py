"""A step in several passes treats BatchNormalization and Dropout as Keras does when it accumulates gradients: each pass
has statistics and draws of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from parallax_runner.graph.parts.accumulated import accumulated
from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from tests.parallel.concatenated import train

EXAMPLES, WIDTH, PARTS, STEPS, RATE = 12, 3, 3, 4, 0.01
Values = dict[str, np.ndarray]


def normalizing() -> Any:
    return keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(4, activation="tanh", name="first"),
            keras.layers.BatchNormalization(momentum=0.5, name="norm"),
            keras.layers.Dense(1, name="last"),
        ],
        name="model",
    )


def make_normalizing() -> Any:
    model, optimizer = normalizing(), keras.optimizers.Adam(RATE, name="adam")
    optimizer.build(model.trainable_variables)

    def step(features: dict[str, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features["x"], training=True)[:, 0] - features["y"]))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step


def captured(make: Callable[[], Any], examples: int, width: int) -> SingleDeviceGraph:
    features = {"x": ((examples, width), "float32"), "y": ((examples,), "float32")}
    keras.backend.clear_session(free_memory=False)
    return capture_step(make, features, seed=1, options={})


def batch(step: int) -> Values:
    draw = np.random.default_rng(step)
    x = draw.normal(size=[EXAMPLES, WIDTH]).astype(np.float32)
    return {"x": x, "y": np.tanh(x.sum(axis=1)) + draw.normal(size=EXAMPLES).astype(np.float32)}


def test_batch_normalization_equals_plain_keras_that_accumulates_gradients() -> None:
    """Also the moving statistics, which each pass updates with its own."""
    whole = captured(make_normalizing, EXAMPLES, WIDTH)
    divided = accumulated(whole, captured(make_normalizing, EXAMPLES // PARTS, WIDTH), PARTS)
    keras.backend.clear_session(free_memory=False)
    model = normalizing()
    model.compile(keras.optimizers.Adam(RATE, gradient_accumulation_steps=PARTS), "mse")
    initial = {one.name: np.zeros(one.shape, one.dtype) for one in divided.variables}
    initial |= {one.path: np.asarray(one) for one in model.variables}
    initial["adam/learning_rate"] = np.float32(RATE)
    steps = [batch(step) for step in range(STEPS)]
    found, _ = train(divided, initial, [[one] for one in steps])
    for one in steps:
        for x, y in zip(np.split(one["x"], PARTS), np.split(one["y"], PARTS), strict=True):
            model.train_on_batch(x, y[:, None])
    for variable in model.variables:
        np.testing.assert_allclose(found[variable.path], variable, rtol=1e-5, atol=1e-6, err_msg=variable.path)
        assert np.abs(found[variable.path] - initial[variable.path]).max() > RATE
    in_one_pass, _ = train(whole, initial, [[one] for one in steps])
    assert np.abs(in_one_pass["model/norm/gamma"] - found["model/norm/gamma"]).max() > 1e-4


COLUMNS = 64


def make_dropping() -> Any:
    """A step whose gradient is the mean of the inputs after Dropout."""
    weights = tf.Variable(np.zeros(COLUMNS, np.float32), name="weights")
    dropout = keras.layers.Dropout(0.5, seed=3)

    def step(features: dict[str, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(dropout(features["x"], training=True), weights))
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    return step


def masks_of(divided: SingleDeviceGraph, steps: int) -> np.ndarray:
    """Returns which inputs the passes of the last step keep: bool [EXAMPLES, COLUMNS]. The inputs of example i are 2^i,
    so the sum over the examples tells."""
    meta_graph = type(divided.meta_graph)()
    meta_graph.CopyFrom(divided.meta_graph)
    initializers = [one.initializer for one in divided.variables]
    seeded = derive_seeds(meta_graph.graph_def, seed=1, rank=0, first_step=0, initializers=initializers)
    meta_graph.graph_def.CopyFrom(seeded)
    x = np.repeat(2.0 ** np.arange(EXAMPLES, dtype=np.float32)[:, None], COLUMNS, axis=1)
    one = {"x": x, "y": np.zeros(EXAMPLES, np.float32)}
    initial = {each.name: np.zeros(each.shape, each.dtype) for each in divided.variables}
    run = dataclasses.replace(divided, meta_graph=meta_graph)
    before, after = (train(run, initial, [[one]] * number)[0]["weights"] for number in (steps - 1, steps))
    sums = np.rint((before - after) * EXAMPLES / 2).astype(np.int64)
    return (sums >> np.arange(EXAMPLES)[:, None] & 1).astype(bool)


def test_each_pass_and_each_step_drops_other_inputs() -> None:
    divided = accumulated(captured(make_dropping, EXAMPLES, COLUMNS), captured(make_dropping, 1, COLUMNS), EXAMPLES)
    first, second = masks_of(divided, 1), masks_of(divided, 2)
    masks = [tuple(row) for row in (*first, *second)]
    assert len(set(masks)) == len(masks)
    assert 0.4 < np.mean(masks) < 0.6
    np.testing.assert_array_equal(masks_of(divided, 2), second)
