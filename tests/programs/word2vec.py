"""Word vectors from pairs of words and negative samples, in the manner of TensorFlow's tutorial."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.programs.program import Program

WORDS, WIDTH, NEGATIVES, BATCH, EXAMPLES = 25, 4, 3, 8, 53


class Word2Vec(keras.Model):
    """Two tables. The score of a pair is the product of a row of each."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.context = layers.Embedding(WORDS, WIDTH), layers.Embedding(WORDS, WIDTH)

    def call(self, pair: Any) -> Any:
        target, context = pair
        return ops.einsum("be,bce->bc", self.target(target), self.context(context))


def sample(number: Any) -> Any:
    """Returns a word, its context with negatives behind it, and the label of the first context."""
    context = (number * tf.range(3, 4 + NEGATIVES, dtype="int64")) % WORDS
    return (number % WORDS, context), tf.one_hot(0, 1 + NEGATIVES, dtype="float64")


def make() -> Program:
    """Returns the model and its data."""
    made = Word2Vec()
    made.compile(
        keras.optimizers.SGD(0.5), keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    data = tf.data.Dataset.range(EXAMPLES).map(sample).shuffle(EXAMPLES, seed=4, reshuffle_each_iteration=False)
    return Program(made, {"x": data.batch(BATCH).prefetch(2), "epochs": 3})
