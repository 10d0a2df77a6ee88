"""Retrieval with two towers whose training step gets a dict, in the manner of TensorFlow Recommenders.

Each example has a negative of its own, because the negatives of other examples depend on the batch of a worker.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.programs.program import Program

USERS, ITEMS, WIDTH, BATCH, EXAMPLES = 20, 15, 4, 7, 40


class TwoTower(keras.Model):
    """A tower of users and one of items. Has no `call`."""

    def __init__(self) -> None:
        super().__init__()
        self.users = keras.Sequential([keras.Input([], dtype="int32"), layers.Embedding(USERS, WIDTH)])
        self.items = keras.Sequential(
            [keras.Input([], dtype="int32"), layers.Embedding(ITEMS, WIDTH), layers.Dense(WIDTH)]
        )
        self.right, self.total = keras.metrics.Mean(name="right"), keras.metrics.Mean(name="loss")

    def train_step(self, features: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            user = self.users(features["user"])
            difference = self.items(features["seen"]) - self.items(features["not_seen"])
            margins = ops.sum(user * difference, axis=1)
            losses = ops.softplus(-margins)
            loss = ops.mean(losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.right.update_state(ops.cast(margins > 0, "float64"))
        self.total.update_state(losses)
        return {"loss": self.total.result(), "right": self.right.result()}


def make() -> Program:
    """Returns the model and its data."""
    made = TwoTower()
    made.compile(keras.optimizers.SGD(0.5))
    draws = np.random.default_rng(5)
    ids = {"user": USERS, "seen": ITEMS, "not_seen": ITEMS}
    features = {name: draws.integers(0, most, EXAMPLES).astype("int32") for name, most in ids.items()}
    return Program(made, {"x": tf.data.Dataset.from_tensor_slices(features).batch(BATCH), "epochs": 3})
