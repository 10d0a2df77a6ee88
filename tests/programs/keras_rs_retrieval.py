"""Two towers, with the retrieval layers of keras_rs in the loss, and a search over all items in evaluation.

Each user is compared with the same candidates, not with the items of the batch, because a rank has only a part of the
batch.
"""

from __future__ import annotations

from typing import Any

import keras
import keras_rs
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.programs.program import BATCH, Program

ITEMS, USERS, CANDIDATES, WIDTH = 50, 30, 20, 8


class TwoTowers(keras.Model):
    """Has a loss of its own, as in the guides of keras_rs."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = layers.Embedding(USERS, WIDTH), layers.Embedding(ITEMS, WIDTH)
        self.search = keras_rs.layers.BruteForceRetrieval(k=10, return_scores=False)
        self.correct = keras_rs.layers.SamplingProbabilityCorrection()
        self.remove_hits = keras_rs.layers.RemoveAccidentalHits()
        self.mine = keras_rs.layers.HardNegativeMining(4)
        self.loss_fn = keras.losses.CategoricalCrossentropy(from_logits=True)

    def build(self, input_shape: Any) -> None:
        self.users.build(input_shape)
        self.items.build(input_shape)
        self.search.candidate_embeddings = self.items.embeddings
        self.search.build(input_shape)
        super().build(input_shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        found = {"users": self.users(inputs)}
        if not training:
            found["items"] = self.search(found["users"])
        return found

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
        ids = ops.arange(0, CANDIDATES, dtype="int64")
        logits = ops.matmul(y_pred["users"], ops.transpose(self.items(ids)))
        labels = ops.cast(ops.one_hot(y, CANDIDATES), logits.dtype)
        logits = self.correct(logits, 0.1 * ops.ones_like(logits))
        logits, labels = self.mine(self.remove_hits(logits, labels, ids), labels)
        return self.loss_fn(labels, logits, sample_weight)


def make() -> Program:
    """Returns the model and its data."""
    model = TwoTowers()
    model.compile(keras.optimizers.SGD(0.1))
    draws = np.random.default_rng(3)
    users, items = draws.integers(0, USERS, [4 * BATCH]), draws.integers(0, CANDIDATES, [4 * BATCH])
    dataset = tf.data.Dataset.from_tensor_slices((users, items)).batch(BATCH)
    return Program(model, {"x": dataset, "validation_data": dataset, "epochs": 2})
