"""Translation with attention and padded sentences, in the manner of TensorFlow's tutorial.

The loss is a mean over the words of the batch that are not padding.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tests.programs.program import Program

SOURCE, TARGET, WIDTH, BATCH, EXAMPLES = 11, 9, 4, 5, 17


def pair(number: Any) -> Any:
    """Returns the words of a sentence, the words of its translation so far, and the next words. 0 is padding."""
    source = (number * tf.range(1, number % 5 + 2)) % (SOURCE - 1) + 1
    target = (number * tf.range(2, number % 4 + 4)) % (TARGET - 1) + 1
    return {"source": source, "target": target[:-1]}, target[1:]


def data() -> Any:
    """Returns pairs of sentences in batches."""
    return tf.data.Dataset.range(1, EXAMPLES + 1).map(pair).padded_batch(BATCH)


def model(kind: type[keras.Model] = keras.Model) -> Any:
    """Returns an encoder, and a decoder that attends to it."""
    source, target = (
        keras.Input([None], dtype="int64", name="source"),
        keras.Input([None], dtype="int64", name="target"),
    )
    encoded = layers.GRU(WIDTH, return_sequences=True)(layers.Embedding(SOURCE, WIDTH, mask_zero=True)(source))
    decoded = layers.GRU(WIDTH, return_sequences=True)(layers.Embedding(TARGET, WIDTH, mask_zero=True)(target))
    attended = layers.Attention()([decoded, encoded])
    return kind({"source": source, "target": target}, layers.Dense(TARGET)(layers.Add()([decoded, attended])))


def make() -> Program:
    """Returns the model and its data."""
    made = model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    made.compile(keras.optimizers.SGD(0.3, momentum=0.5), loss)
    return Program(made, {"x": data(), "epochs": 3})
