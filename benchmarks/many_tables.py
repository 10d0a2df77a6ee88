"""Recommenders with many tables, for measuring the time to plan. Their features are those of `data=clicks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

UNITS = 32


def make_model(*, cardinalities: Sequence[int], width: int, optimizer: str) -> keras.Model:
    """Returns a compiled functional model. Each column of `categorical` has a table with rows of `width`."""
    dense = keras.Input([13], name="dense")
    categorical = keras.Input([len(cardinalities)], name="categorical", dtype="int64")
    rows = [
        layers.Embedding(cardinality, width, name=f"table_{feature}")(categorical[:, feature])
        for feature, cardinality in enumerate(cardinalities)
    ]
    hidden = layers.Dense(UNITS, activation="relu", name="hidden")(ops.concatenate([dense, *rows], axis=1))
    model = keras.Model(
        {"dense": dense, "categorical": categorical}, layers.Dense(1, name="logit")(hidden), name="many_tables"
    )
    # A norm over all gradients connects the updates of all tables.
    model.compile(
        optimizer=keras.optimizers.get({"class_name": optimizer, "config": {"global_clipnorm": 10.0}}),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=["mse"],
    )
    return model


def make_step(*, cardinalities: Sequence[int], width: int) -> Any:
    """Returns a training step with a tape. The step updates each table by the gradient of the rows that it has looked
    up."""
    tables = [tf.Variable(tf.zeros([rows, width]), name=f"table_{number}") for number, rows in enumerate(cardinalities)]
    hidden = tf.Variable(tf.ones([13 + len(cardinalities) * width, UNITS]) * 0.01, name="hidden")
    out = tf.Variable(tf.ones([UNITS, 1]) * 0.01, name="out")

    def step(batch: dict[str, Any]) -> Any:
        rows = [tf.gather(table, batch["categorical"][:, number]) for number, table in enumerate(tables)]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            x = tf.concat([batch["dense"], *rows], axis=1)
            logits = tf.matmul(tf.nn.relu(tf.matmul(x, hidden)), out)[:, 0]
            labels = tf.cast(tf.reshape(batch["label"], [-1]), tf.float32)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        of_rows, of_hidden, of_out = tape.gradient(loss, [rows, hidden, out])
        for number, (table, gradient) in enumerate(zip(tables, of_rows, strict=True)):
            table.scatter_sub(tf.IndexedSlices(0.05 * gradient, batch["categorical"][:, number]))
        hidden.assign_sub(0.05 * of_hidden)
        out.assign_sub(0.05 * of_out)
        return loss

    return step
