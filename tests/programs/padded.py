"""Sentences of different lengths, padded to the longest one of each batch. Only the validation examples have weights.

The output depends on that length and on a mask: on a mean over all positions and on a mean over words.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.programs.program import Program

WORDS, BATCH, EXAMPLES = 12, 5, 17


def sentences(first: int, examples: int) -> Any:
    """Example i has i % 6 + 1 words and a number for each word. All passes have the same order."""

    def sentence(number: Any) -> Any:
        words = (number * tf.range(1, number % 6 + 2)) % (WORDS - 1) + 1
        return words, tf.sin(tf.cast(words * number, "float64"))[:, None]

    examples_in_order = tf.data.Dataset.range(first, first + examples)
    return examples_in_order.shuffle(examples, seed=3, reshuffle_each_iteration=False).map(sentence)


def in_total(words: Any, targets: Any) -> Any:
    """Returns one number for the sentence."""
    return words, tf.reduce_sum(targets, axis=0)


def with_weights(words: Any, target: Any) -> Any:
    """Adds a weight for each sentence."""
    return words, target, tf.cast(words[:, 0], "float64")


def rows_of(words: Any) -> Any:
    """Returns a row for each word, with a mask."""
    return keras.layers.Embedding(WORDS, 4, mask_zero=True, name="table")(words)


def make() -> Program:
    """Returns the model and its data."""
    words = keras.Input([None], dtype="int64")
    rows = rows_of(words)
    of_all = keras.layers.Lambda(lambda one: keras.ops.mean(one, axis=1), output_shape=(4,))(rows)
    of_words = keras.layers.GlobalAveragePooling1D()(rows)
    model = keras.Model(words, keras.layers.Dense(1)(keras.layers.Concatenate()([of_all, of_words])))
    model.compile(keras.optimizers.SGD(0.05), "mse", weighted_metrics=["mae"])
    train = sentences(1, EXAMPLES).map(in_total).padded_batch(BATCH)
    validation = sentences(5, 9).map(in_total).padded_batch(4).map(with_weights)
    return Program(model, {"x": train, "epochs": 3, "validation_data": validation})
