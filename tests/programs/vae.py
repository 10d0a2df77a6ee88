"""A variational autoencoder that trains on features alone, in the manner of keras.io's example.

The noise is part of the data, so that it is the same for any number of workers.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.programs.program import BATCH, Program

PIXELS, LATENT = 12, 2


class Vae(keras.Model):
    """Has an encoder, a decoder and three metrics, and no `call`. The weight of the divergence grows with each step."""

    def __init__(self) -> None:
        super().__init__()
        pixels = keras.Input([PIXELS])
        hidden = layers.Dense(6, activation="tanh")(pixels)
        means = layers.Dense(LATENT, name="means")(hidden)
        self.encoder = keras.Model(pixels, [means, layers.Dense(LATENT, name="spreads")(hidden)], name="encoder")
        self.decoder = keras.Sequential([keras.Input([LATENT]), layers.Dense(PIXELS)], name="decoder")
        names = ("total_loss", "reconstruction_loss", "divergence")
        self.trackers = {name: keras.metrics.Mean(name=name) for name in names}
        self.weights_of_terms = [tf.Variable(tf.constant(0.1, "float64"), trainable=False, name="weight")]

    @property
    def metrics(self) -> list[Any]:
        return list(self.trackers.values())

    def losses_of(self, data: Any) -> dict[str, Any]:
        means, spreads = self.encoder(data["pixels"])
        found = self.decoder(means + ops.exp(0.5 * spreads) * data["noise"])
        reconstruction = ops.mean(ops.sum(ops.square(data["pixels"] - found), axis=1))
        divergence = ops.mean(ops.sum(-0.5 * (1 + spreads - ops.square(means) - ops.exp(spreads)), axis=1))
        total = reconstruction + self.weights_of_terms[0] * divergence
        return {"total_loss": total, "reconstruction_loss": reconstruction, "divergence": divergence}

    def logs_of(self, losses: dict[str, Any]) -> dict[str, Any]:
        for name, value in losses.items():
            self.trackers[name].update_state(value)
        results = {name: tracker.result() for name, tracker in self.trackers.items()}
        return {**results, "loss": results["total_loss"], "per pixel": results["reconstruction_loss"] / PIXELS}

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            losses = self.losses_of(data)
        gradients = tape.gradient(losses["total_loss"], self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.weights_of_terms[0].assign_add(0.05)
        return self.logs_of(losses)

    def test_step(self, data: Any) -> dict[str, Any]:
        losses = self.losses_of(data)
        return {"last": losses["total_loss"], **self.logs_of(losses)}


def make() -> Program:
    """Returns the model and its data. Validation batches are whole ones, because the trackers count batches."""
    model = Vae()
    model.compile(keras.optimizers.Adam(0.01))
    draws = np.random.default_rng(2)

    def data(examples: int) -> Any:
        return {"pixels": draws.normal(size=[examples, PIXELS]), "noise": draws.normal(size=[examples, LATENT])}

    stop = keras.callbacks.EarlyStopping("val_per pixel", mode="min", patience=5, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_last", mode="min", factor=0.5, patience=1, min_delta=10.0)
    return Program(
        model,
        {
            "x": data(4 * BATCH),
            "batch_size": BATCH,
            "epochs": 4,
            "validation_data": (data(2 * BATCH),),
            "callbacks": [stop, plateau],
        },
    )
