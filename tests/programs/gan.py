"""A GAN with two optimizers and without `call`, in the manner of Keras' guide on `train_step`.

The noise is part of the data, so that it is the same for any number of workers.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.programs.program import BATCH, Program

PIXELS, NOISE = 16, 4


class Gan(keras.Model):
    """Trains a discriminator and a generator in turn. Nothing calls the model itself."""

    def __init__(self) -> None:
        super().__init__()
        hidden = layers.Dense(8, activation="leaky_relu")
        self.discriminator = keras.Sequential([keras.Input([PIXELS]), hidden, layers.Dense(1)], name="discriminator")
        # Without an input: the first training step builds it.
        self.generator = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(PIXELS)], name="generator")
        self.d_loss_metric, self.g_loss_metric = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")
        self.batches_seen = tf.Variable(0, dtype="int64", trainable=False)

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        """Leaves Keras' own optimizer unused."""
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, data: Any) -> dict[str, Any]:
        real, noise = data
        generated = self.generator(noise)
        images = tf.concat([generated, real], axis=0)
        ones, zeros = tf.ones([tf.shape(real)[0], 1]), tf.zeros([tf.shape(real)[0], 1])
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(tf.concat([ones, zeros], axis=0), self.discriminator(images))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(zeros, self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.batches_seen.assign_add(1)
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result(), "g_now": g_loss}


class Slower(keras.callbacks.Callback):
    """Changes the learning rate of one of the optimizers."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert logs is not None and "g_now" in logs
        self.model.d_optimizer.learning_rate = 0.05 / (epoch + 2)


def make() -> Program:
    """Returns the model and its data."""
    model = Gan()
    model.compile(
        keras.optimizers.Adam(0.05), keras.optimizers.Adam(0.02), keras.losses.BinaryCrossentropy(from_logits=True)
    )
    draws = np.random.default_rng(1)
    images, noise = draws.normal(0.5, size=[4 * BATCH, PIXELS]), draws.normal(size=[4 * BATCH, NOISE])
    dataset = tf.data.Dataset.from_tensor_slices((images, noise)).batch(BATCH)
    return Program(model, {"x": dataset, "epochs": 3, "callbacks": [Slower()]})
