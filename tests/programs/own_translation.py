"""The program `translation` with a `train_step` of its own. Its loss is a mean over the words that are not padding."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.programs import translation
from tests.programs.program import Program


class Translator(keras.Model):
    """Trains with twice the loss of `compile`, and counts the right words."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = 2.0 * self.compute_loss(x, y, predicted)
        slopes = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
        self.right.update_state(y, predicted)
        return {"right": self.right.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.right]


def make() -> Program:
    """Returns the model and its data."""
    made = translation.model(Translator)
    made.right = keras.metrics.SparseCategoricalAccuracy(name="right")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    made.compile(keras.optimizers.SGD(0.3, momentum=0.5), loss)
    return Program(made, {"x": translation.data(), "epochs": 3})
