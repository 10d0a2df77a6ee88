"""Clicks, with tables and feature interactions of keras_rs: a shared table, nested features, weights, two combiners.

The data is preprocessed, as the documentation of `DistributedEmbedding` does it. SGD, because Keras does not merge
repeated ids.
"""

from __future__ import annotations

from typing import Any

import keras
import keras_rs
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.programs.program import BATCH, Program

ITEMS, USERS, WIDTH = 50, 30, 8


class Clicks(keras.Model):
    """Looks up a user, an item and the items that the user has seen, and lets them interact."""

    def __init__(self) -> None:
        super().__init__()
        # The initializer of `items` is the default one, which draws its seed when keras_rs is imported.
        items = keras_rs.layers.TableConfig("items", vocabulary_size=ITEMS, embedding_dim=WIDTH)
        users = keras_rs.layers.TableConfig(
            "users", vocabulary_size=USERS, embedding_dim=WIDTH, initializer="uniform", combiner="sum"
        )
        one = {"input_shape": (BATCH, 1), "output_shape": (BATCH, WIDTH)}
        self.tables = keras_rs.layers.DistributedEmbedding(
            {
                "user": keras_rs.layers.FeatureConfig("user", users, **one),
                "items": [
                    keras_rs.layers.FeatureConfig("item", items, **one),
                    keras_rs.layers.FeatureConfig("seen", items, (BATCH, 5), (BATCH, WIDTH)),
                ],
            }
        )
        self.dense = layers.Dense(WIDTH, activation="tanh")
        self.pairs = keras_rs.layers.DotInteraction()
        self.cross = keras_rs.layers.FeatureCross(projection_dim=4)
        self.top = layers.Dense(1, activation="sigmoid")

    def preprocessed(self, features: Any) -> Any:
        """Returns the ids and weights of an example's features in the form that the tables take, and its price."""
        ids = {"user": features["user"], "items": [features["item"], features["seen"]]}
        one = tf.ones_like(features["user"], "float64")
        weights = {"user": one, "items": [one, features["often"]]}
        return {"ids": self.tables.preprocess(ids, weights), "price": features["price"]}

    def call(self, inputs: Any) -> Any:
        rows = self.tables(inputs["ids"])
        dense = self.dense(inputs["price"])
        pairs = self.pairs([dense, *keras.tree.flatten(rows)])
        return self.top(self.cross(ops.concatenate([dense, pairs], axis=-1)))


def make() -> Program:
    """Returns the model and its data."""
    model = Clicks()
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    draws = np.random.default_rng(3)
    examples = 4 * BATCH
    features = {
        "user": draws.integers(0, USERS, [examples, 1]),
        "item": draws.integers(0, ITEMS, [examples, 1]),
        "seen": draws.integers(0, ITEMS, [examples, 5]),
        "often": draws.random([examples, 5]),
        "price": draws.normal(size=[examples, 3]),
    }
    clicked = draws.integers(0, 2, [examples, 1]).astype("float64")
    batches = tf.data.Dataset.from_tensor_slices((features, clicked)).batch(BATCH)
    dataset = batches.map(lambda x, y: (model.preprocessed(x), y))
    return Program(model, {"x": dataset, "validation_data": dataset, "epochs": 2})
