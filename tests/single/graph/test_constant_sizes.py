"""A graph that no file can hold is refused with the names of its largest constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph import constant_sizes
from parallax_runner.graph.capture import capture
from parallax_runner.graph.traced.capture_step import capture_step

LARGE = np.zeros([100, 10], np.float64)  # 8,000 bytes


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that small arrays exceed."""
    monkeypatch.setattr(constant_sizes, "MOST_BYTES", 5000)


def test_of_a_graph() -> None:
    def model(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        weights = tf.get_variable("weights", [10], tf.float64)
        loss = tf.reduce_sum(tf.constant(LARGE, name="mine") * weights)
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    with pytest.raises(CaptureError, match=r"at most .* GB; the largest: «mine» \(8e-06 GB\), .* \(trainable=False\)"):
        capture(model, {"x": ((2,), "float64")}, seed=1)


def test_equal_values_count_once() -> None:
    """Otherwise, a large table could not have slots: their initial values are such constants."""

    def model(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = tf.get_variable("table", LARGE.shape, tf.float64)
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]))
        return {"loss": loss, "train_op": tf.train.AdagradOptimizer(0.1).minimize(loss)}

    assert capture(model, {"ids": ((2,), "int32")}, seed=1).variables[-1].shape == LARGE.shape


def test_of_a_step() -> None:
    def make() -> Any:
        weights = tf.Variable(np.zeros(10), name="weights")
        table = tf.constant(LARGE)

        def step(batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(table * weights) + tf.reduce_sum(batch["x"])
            weights.assign_sub(tape.gradient(loss, weights))
            return loss

        return step

    with pytest.raises(CaptureError, match=r"largest: a float64 tensor \(100, 10\) that the step uses"):
        capture_step(make, {"x": ((2,), "float64")}, seed=1, options={})
