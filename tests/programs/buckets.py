"""Sentences in batches of three sizes, each padded to its longest sentence, some with fewer examples than workers.

The loss is a mean over the words of a batch, of which the workers have different numbers.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.programs.padded import EXAMPLES, rows_of, sentences
from tests.programs.program import Program

STEPS = 6  # of a pass. Plain Keras counts one step too many in a pass of unknown length.


def bucketed() -> Any:
    """Returns batches of 4, 3 and 5 sentences, by length."""
    found = sentences(1, EXAMPLES).bucket_by_sequence_length(lambda words, _: tf.shape(words)[0], [3, 5], [4, 3, 5])
    return found.apply(tf.data.experimental.assert_cardinality(STEPS))


def make() -> Program:
    """Returns the model and its data."""
    words = keras.Input([None], dtype="int64")
    hidden = keras.layers.Dense(3, activation="tanh")(rows_of(words))
    model = keras.Model(words, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.2), "mse", weighted_metrics=["mae"])
    return Program(model, {"x": bucketed(), "epochs": 3})
