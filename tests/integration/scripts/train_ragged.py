"""A Keras script with a ragged and a sparse feature: `train_ragged.py COMM LEFT`; COMM «plain» is plain Keras."""

from __future__ import annotations

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import parallax_runner

ROWS, WIDTH, BATCH = 400, 30, 8
comm, left = sys.argv[1:]
keras.utils.set_random_seed(7)
draws = np.random.default_rng(7)


def examples(count: int) -> tf.data.Dataset:
    """Each word occurs once in a batch, because plain Keras does not merge repeated ones."""
    lengths = draws.integers(1, 6, count)
    words = [draws.permutation(ROWS)[: lengths[at : at + BATCH].sum()] for at in range(0, count, BATCH)]
    tags = draws.normal(size=(count, WIDTH)) * (draws.random((count, WIDTH)) < 0.2)
    features = {
        "words": tf.RaggedTensor.from_row_lengths(np.concatenate(words).astype("int32"), lengths),
        "tags": tf.sparse.from_dense(tags.astype("float32")),
    }
    return tf.data.Dataset.from_tensor_slices((features, draws.integers(0, 2, (count, 1)).astype("float32")))


train = examples(40).batch(BATCH)
validation = examples(21).batch(BATCH)  # the last batch is smaller
words = keras.Input([None], dtype="int32", ragged=True, name="words")
tags = keras.Input([WIDTH], sparse=True, name="tags")
pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(ROWS, 4, name="table")(words))
joined = keras.layers.Concatenate()([pooled, keras.layers.Dense(4, name="tagged")(tags)])
model = keras.Model({"words": words, "tags": tags}, keras.layers.Dense(1, activation="sigmoid", name="top")(joined))
model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["accuracy"])

options = {"epochs": 2, "validation_data": validation}
if comm == "plain":
    history = model.fit(train, verbose=0, **options)
else:
    history = parallax_runner.fit(model, train, comm=comm, workers=2, overrides=["tracking=off"], **options)
found = {
    "history": history.history,
    "weights": {variable.path: variable.numpy().tolist() for variable in model.variables},
    "optimizer": {variable.path: variable.numpy().tolist() for variable in model.optimizer.variables},
}
with open(left, "w", encoding="utf-8") as file:
    json.dump(found, file)
