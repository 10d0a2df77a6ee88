"""Clicks with crossed features (DCN v2), sums of bags of tags, and class weights in `fit`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from tests.programs.program import Program

SITES, TAGS, WIDTH, EXAMPLES = 30, 12, 3, 45


def crossed(first: Any, x: Any) -> Any:
    """Returns `first * dense(x) + x`."""
    return layers.Add()([layers.Multiply()([first, layers.Dense(first.shape[-1])(x)]), x])


def make() -> Program:
    """Returns the model and its data. Names have spaces and signs, as columns of a file can."""
    site = keras.Input([], dtype="int32", name="site")
    tags = keras.Input([4], dtype="int32", name="tags")
    price = keras.Input([1], name="price")
    bag = layers.Lambda(lambda rows: keras.ops.sum(rows, axis=1), output_shape=(WIDTH,))(
        layers.Embedding(TAGS, WIDTH)(tags)
    )
    first = layers.Concatenate()([layers.Embedding(SITES, WIDTH)(site), bag, price])
    out = layers.Dense(1)(crossed(first, crossed(first, first)))
    made = keras.Model({"the site": site, "tags, all": tags, "price (EUR)": price}, out)
    made.compile(keras.optimizers.SGD(0.05), keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mae"])
    draws = np.random.default_rng(6)
    x = {
        "the site": draws.integers(0, SITES, EXAMPLES).astype("int32"),
        "tags, all": draws.integers(0, TAGS, [EXAMPLES, 4]).astype("int32"),
        "price (EUR)": draws.normal(size=[EXAMPLES, 1]),
    }
    y = (x["the site"] % 3 == 0).astype("float64")[:, None]
    arguments = {"batch_size": 10, "epochs": 3, "shuffle": False, "class_weight": {0: 0.5, 1: 2.0}}
    return Program(made, {"x": x, "y": y, **arguments})
