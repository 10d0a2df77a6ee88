"""A DLRM in Keras: dot products combine the embeddings of categorical features with an MLP of dense features.

After "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (Naumov and others, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops


def make_model(
    *,
    dense_features: int,
    cardinalities: Sequence[int],
    max_rows: int,
    embedding_size: int,
    bottom_units: Sequence[int],
    top_units: Sequence[int],
    optimizer: str = "adagrad",
    learning_rate: float = 0.05,
) -> keras.Model:
    """Return the compiled model.

    Inputs: `dense`, float [batch, dense_features], and `categorical`, int64 [batch, len(cardinalities)]. Ids of feature
    f are below `cardinalities[f]`. If a feature has more than `max_rows` ids, its ids are hashed to `max_rows` rows.
    Each feature has its own table, `embedding_<f>`, with rows of `embedding_size`. The MLPs have hidden layers of
    `bottom_units` and `top_units`. The bottom MLP ends with `embedding_size` units, and the top MLP ends with 1 unit.

    Output: the logit of a click, float [batch, 1]. The loss is the binary cross entropy, and the metric is AUC.
    `optimizer` is the name of a Keras optimizer.
    """
    dense = keras.Input([dense_features], name="dense")
    categorical = keras.Input([len(cardinalities)], name="categorical", dtype="int64")
    bottom = mlp(dense, [*bottom_units, embedding_size], name="bottom")
    embeddings = [
        embed(categorical[:, feature], cardinality, max_rows, embedding_size, name=f"embedding_{feature}")
        for feature, cardinality in enumerate(cardinalities)
    ]
    features = ops.concatenate([bottom, interactions([bottom, *embeddings])], axis=1)
    hidden = mlp(features, top_units, name="top")
    logits = layers.Dense(1, name="logit")(hidden)
    model = keras.Model({"dense": dense, "categorical": categorical}, logits, name="dlrm")
    model.compile(
        optimizer=keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": learning_rate}}),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    )
    return model


def mlp(inputs: Any, units: Sequence[int], *, name: str) -> Any:
    """Return the output of the ReLU layers `<name>_0`, `<name>_1` and so on."""
    for number, size in enumerate(units):
        inputs = layers.Dense(size, activation="relu", name=f"{name}_{number}")(inputs)
    return inputs


def embed(ids: Any, cardinality: int, max_rows: int, size: int, *, name: str) -> Any:
    """Return the embedding rows of `ids` [batch], as [batch, size]."""
    if cardinality > max_rows:
        ids = layers.Hashing(max_rows, name=f"{name}_hash")(ids)
    rows = min(cardinality, max_rows)
    initializer = keras.initializers.RandomUniform(-(rows**-0.5), rows**-0.5)  # as in the paper's code
    return layers.Embedding(rows, size, embeddings_initializer=initializer, name=name)(ids)


def interactions(vectors: Sequence[Any]) -> Any:
    """Return the dot product of each pair of vectors [batch, size], as [batch, pairs]."""
    stacked = ops.stack(vectors, axis=1)
    products = ops.matmul(stacked, ops.transpose(stacked, [0, 2, 1]))
    count = len(vectors)
    row, column = np.tril_indices(count, k=-1)
    return ops.take(ops.reshape(products, [-1, count * count]), row * count + column, axis=1)
