"""Wide and deep: a linear part over crossed columns, and a deep part with an embedding, each with its own optimizer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.programs.program import BATCH, Program

ROWS = 40


class WideAndDeep(keras.Model):
    """Adds what both parts predict. Two optimizers train from one tape."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = {"wide": layers.Dense(1, use_bias=False), "deep": [layers.Dense(8, activation="tanh")]}
        self.table = layers.Embedding(ROWS, 4, name="table")
        self.top = layers.Dense(1)
        self.bias = keras.Variable(np.zeros(1), name="bias")

    def compile(self, wide_optimizer: Any, deep_optimizer: Any, **given: Any) -> None:
        """The optimizers are in a dict."""
        super().compile(**given)
        self.optimizers = {"wide": wide_optimizer, "deep": deep_optimizer}

    def call(self, features: Any) -> Any:
        deep = layers.concatenate([self.table(features["id"]), features["dense"]])
        for layer in self.parts["deep"]:
            deep = layer(deep)
        return tf.sigmoid(self.parts["wide"](features["crossed"]) + self.top(deep) + self.bias.value)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted)
        wide = self.parts["wide"].trainable_variables
        deep = [one for layer in (*self.parts["deep"], self.table, self.top) for one in layer.trainable_variables]
        deep.append(self.bias)
        of_wide, of_deep = tape.gradient(loss, [wide, [one.value for one in deep]])
        self.optimizers["wide"].apply_gradients(zip(of_wide, wide, strict=True))
        self.optimizers["deep"].apply_gradients(zip(of_deep, deep, strict=True))
        logs = self.compute_metrics(x, y, predicted)
        return {**logs, "loss": loss, "rates": {"wide rate": self.optimizers["wide"].learning_rate}}


class Rates(keras.callbacks.Callback):
    """Changes both learning rates before an epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizers["wide"].learning_rate = 0.3 / (epoch + 1)
        self.model.optimizers["deep"].learning_rate = 0.1 * (epoch + 1)


def make() -> Program:
    """Returns the model and its data. An id occurs once in a batch, because plain Keras merges no repeated ids."""
    model = WideAndDeep()
    model.compile(
        keras.optimizers.SGD(0.3, momentum=0.9),
        keras.optimizers.Adagrad(0.1),
        loss="binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
    )
    draws = np.random.default_rng(3)
    examples = 5 * BATCH
    ids = np.concatenate([draws.permutation(ROWS)[:BATCH] for _ in range(5)]).astype("int32")
    dense, labels = draws.normal(size=[examples, 3]), (ids % 2)[:, None]
    x = {"id": ids, "dense": dense, "crossed": np.eye(6)[ids % 6]}
    held_back = {name: array[: BATCH + 4] for name, array in x.items()}
    return Program(
        model,
        {
            "x": x,
            "y": labels,
            "batch_size": BATCH,
            "epochs": 2,
            "validation_data": [held_back, labels[: BATCH + 4]],
            "callbacks": [Rates()],
        },
    )
