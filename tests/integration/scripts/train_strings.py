"""Trains a model of raw strings with plain Keras or with `fit`: `train_strings.py MODE LEFT`. MODE is «plain», or a
mode, the data («arrays» or «dataset») and a number of workers, such as «sharded-arrays-2».

Writes the history, all weights, and what the model predicts for `ASKED`, as JSON to the file LEFT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import parallax_runner

EXAMPLES, BATCH = 44, 8  # the last batch is partial
CITIES = np.array(["Zürich", "東京", "", "New York", "São Paulo"])
ASKED = {"city": ["東京", "nowhere", "", "Zürich"], "text": ["good food", "bad", "", "very good, very bad"]}
layers = keras.layers


def data() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Arrays of text, and labels."""
    draws = np.random.default_rng(5)
    words = np.array(["good", "bad", "food", "very", "rare"])
    x = {
        "city": CITIES[draws.integers(0, len(CITIES), EXAMPLES)],
        "text": np.array([" ".join(row) for row in words[draws.integers(0, 5, (EXAMPLES, 3))]]),
        "age": draws.integers(1, 90, EXAMPLES),
    }
    return x, draws.normal(size=(EXAMPLES, 1))


def made(x: dict[str, np.ndarray]) -> keras.Model:
    """A table for cities, one for words, and features of a FeatureSpace."""
    keras.utils.set_random_seed(3)
    space = keras.utils.FeatureSpace(
        features={
            "city": keras.utils.FeatureSpace.string_hashed(num_bins=4),
            "age": keras.utils.FeatureSpace.float_discretized(num_bins=4),
        },
        crosses=[keras.utils.FeatureSpace.cross(("city", "age"), crossing_dim=6)],
        output_mode="concat",
    )
    space.adapt(tf.data.Dataset.from_tensor_slices({name: x[name] for name in ("city", "age")}).batch(BATCH))
    text = layers.TextVectorization(output_mode="tf_idf", max_tokens=4)
    text.adapt(x["text"])
    given = {**space.get_inputs(), "text": keras.Input([], dtype="string", name="text")}
    city = layers.StringLookup(vocabulary=sorted({*CITIES[:4]} - {""}), num_oov_indices=2, mask_token="")(given["city"])
    parts = [layers.Flatten()(layers.Embedding(6, 3)(city)), text(given["text"]), space.get_encoded_features()]
    cast = [keras.ops.cast(part, "float64") for part in parts]
    model = keras.Model(given, layers.Dense(1)(layers.Concatenate()(cast)))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    return model


def trained(mode: str) -> dict[str, Any]:
    x, y = data()
    model = made(x)
    tensors = {name: tf.constant(array) for name, array in x.items()}  # plain Keras takes no text of NumPy
    kept = {"epochs": 2, "verbose": 0, "shuffle": False}
    if mode == "plain":
        history = model.fit(tensors, y, batch_size=BATCH, validation_split=0.25, **kept)
    else:
        comm, kind, workers = mode.split("-")
        train = EXAMPLES * 3 // 4
        held_back = ({name: array[train:] for name, array in x.items()}, y[train:])
        given: dict[str, Any] = {"x": x, "y": y, "batch_size": BATCH, "validation_split": 0.25}
        if kind == "dataset":
            rows = ({name: array[:train] for name, array in x.items()}, y[:train])
            given = {"x": tf.data.Dataset.from_tensor_slices(rows).batch(BATCH), "validation_data": held_back}
        overrides = [f"run_dir={mode}", "tracking.uri=sqlite:///runs.db"]
        history = parallax_runner.fit(model, **given, comm=comm, workers=int(workers), overrides=overrides, **kept)
    asked = {name: tf.constant(values) for name, values in ASKED.items()} | {"age": tf.constant([3, 50, 1, 80])}
    return {
        "history": history.history,
        "weights": [array.tolist() for array in model.get_weights()],
        "predicted": model(asked).numpy().tolist(),
    }


if __name__ == "__main__":
    keras.config.set_floatx("float64")
    Path(sys.argv[2]).write_text(json.dumps(trained(sys.argv[1])), encoding="utf-8")
