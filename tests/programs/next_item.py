"""The next item of a sequence, by a small transformer with a causal mask, in the manner of keras.io's recommenders."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from tests.programs.program import Program

ITEMS, LENGTH, WIDTH, EXAMPLES = 16, 5, 4, 23


class Positions(layers.Layer):
    """Adds a row for each position."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.rows = self.add_weight(shape=shape[1:], name="rows")

    def call(self, x: object) -> object:
        return x + self.rows


def make() -> Program:
    """Returns the model and its data. Each position has a weight."""
    items = keras.Input([LENGTH], dtype="int32")
    x = Positions()(layers.Embedding(ITEMS, WIDTH)(items))
    attended = layers.MultiHeadAttention(2, 2, use_bias=False)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(WIDTH)(layers.Dense(6, "gelu")(x))]))
    made = keras.Model(items, layers.Dense(ITEMS)(x))
    made.compile(keras.optimizers.SGD(0.2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    draws = np.random.default_rng(8)
    sequences = draws.integers(0, ITEMS, [EXAMPLES, LENGTH + 1]).astype("int32")
    weights = draws.uniform(0.5, 1.5, [EXAMPLES, LENGTH])
    arguments = {"batch_size": 6, "epochs": 3, "shuffle": False, "sample_weight": weights}
    return Program(made, {"x": sequences[:, :-1], "y": sequences[:, 1:], **arguments})
