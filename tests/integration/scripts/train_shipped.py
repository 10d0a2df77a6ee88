"""Trains a Keras model with plain `fit` and with ours from the same weights, and compares the trained weights.

`train_shipped.py KIND RUN_DIR [LIBRARY]`: see `data_of` for the kinds.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import parallax_runner

print("the script runs", flush=True)
KIND, RUN_DIR, *MORE = sys.argv[1:]
ROWS, BATCH, BATCHES = 400, 16, 6
# Each id occurs once in a batch, because plain Keras does not merge repeated ones.
GENERATOR = np.random.default_rng()  # without a seed: only the driver's examples count
IDS = np.concatenate([GENERATOR.permutation(ROWS)[:BATCH] for _ in range(BATCHES)]).astype("int32")
LABELS = GENERATOR.standard_normal([BATCH * BATCHES, 1]).astype("float32")


if KIND == "library":

    @tf.RegisterGradient("Twice")
    def gradient_of_twice(_: Any, gradient: Any) -> Any:
        return 2 * gradient


class Doubled(keras.layers.Layer):
    """Doubles its input with an op of a library, or with Python."""

    def call(self, inputs: Any) -> Any:
        if KIND == "library":
            return tf.load_op_library(MORE[0]).twice(inputs)
        if KIND == "python":
            scale = tf.numpy_function(lambda: np.float32(2), [], tf.float32)
            return inputs * tf.ensure_shape(scale, [])
        return inputs * 2


def data_of() -> tuple[Any, ...]:
    """The arguments `x` and, for arrays, `y`."""
    if KIND == "table":
        names = tf.constant([str(number) for number in range(ROWS)])
        numbers = tf.lookup.KeyValueTensorInitializer(names, tf.range(ROWS))
        table = tf.lookup.StaticHashTable(numbers, -1)
        words = tf.data.Dataset.from_tensor_slices((names.numpy()[IDS], LABELS))
        return (words.batch(BATCH).map(lambda word, label: (table.lookup(word), label)),)
    if KIND == "generator":
        examples = tf.data.Dataset.from_generator(
            lambda: zip(IDS, LABELS, strict=True),
            output_signature=(tf.TensorSpec([], tf.int32), tf.TensorSpec([1], tf.float32)),
        )
        return (examples.batch(BATCH),)
    return IDS, LABELS


def made() -> keras.Model:
    """A model whose initializers have no seeds."""
    rows = keras.layers.Embedding(ROWS, 8, embeddings_initializer=keras.initializers.RandomNormal(), name="rows")
    scaled = Doubled(dtype="float32")
    model = keras.Sequential([keras.Input([], dtype="int32"), rows, scaled, keras.layers.Dense(1, name="top")])
    model.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=["mae"])
    return model


plain, ours = made(), made()
ours.set_weights(plain.get_weights())
kept = {"epochs": 2, "shuffle": False, **({} if KIND in ("table", "generator") else {"batch_size": BATCH})}
overrides = [f"run_dir={RUN_DIR}", "tracking=off", *(["data.resume=approximate"] if KIND == "generator" else [])]
if KIND == "cache":
    overrides.append(f"data.cache_dir={MORE[0]}")
data = data_of()
history = parallax_runner.fit(ours, *data, workers=2, comm="sharded", overrides=overrides, **kept).history
expected = plain.fit(*data, verbose=0, **kept).history
for one, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
    np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-6)
for name, values in expected.items():
    np.testing.assert_allclose(history[name], values, rtol=2e-4, err_msg=name)
print("equal to plain Keras")
