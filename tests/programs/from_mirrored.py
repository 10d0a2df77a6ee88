"""A step that comes from `MirroredStrategy`: its losses are divided by the size of the global batch.

A replica of `MirroredStrategy` computes the part of the loss that its own examples have, and the parts are summed. The
last batch is partial, and a worker can have no example of it.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.programs.program import Program

WIDTH, ROWS, BATCH, EXAMPLES = 3, 20, 6, 20


class Mirrored(keras.Model):
    """Trains with an average over the global batch and a regularizer, and trains an offset with a sum of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(ROWS, WIDTH, embeddings_regularizer="l2")
        self.dense = layers.Dense(1, kernel_regularizer="l2")
        self.offset = tf.Variable(tf.constant(0.2, "float64"), name="offset")
        self.error = keras.metrics.MeanAbsoluteError(name="error")
        self.of_each = keras.losses.MeanSquaredError(reduction="none")

    @property
    def metrics(self) -> list[Any]:
        return [self.error]

    def call(self, x: Any) -> Any:
        return self.dense(self.table(x["ids"]) * x["x"])

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            predicted = self(x, training=True)
            loss = tf.nn.compute_average_loss(self.of_each(y, predicted), global_batch_size=BATCH)
            loss += tf.nn.scale_regularization_loss(tf.add_n(self.losses))
            offset_loss = tf.reduce_sum(tf.square(y - self.offset)) / BATCH
        variables = self.trainable_weights
        slopes, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.8)
        self.optimizer.apply_gradients(zip(slopes, variables, strict=True))
        self.offset.assign_sub(0.1 * tf.clip_by_norm(tape.gradient(offset_loss, self.offset), 1.0))
        self.error.update_state(y, predicted)
        return {"error": self.error.result()}


def make() -> Program:
    """Returns the model and its data."""
    made = Mirrored()
    made.compile(keras.optimizers.Adagrad(0.3))
    draws = np.random.default_rng(2)
    # A table whose regularizer reads all rows has a dense gradient.
    x = {"ids": draws.integers(0, ROWS, EXAMPLES), "x": draws.normal(size=(EXAMPLES, WIDTH))}
    made({name: array[:1] for name, array in x.items()})
    return Program(made, {"x": x, "y": draws.normal(size=(EXAMPLES, 1)), "batch_size": BATCH, "epochs": 3})
