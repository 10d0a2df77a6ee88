"""Losses whose weights or masks are not equal on all workers: `train_weighted.py COMM FILE`; COMM «plain» is plain
Keras.

Each case has a model of its own. The first worker has the first half of each batch. All numbers are float64.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
import numpy as np

import parallax_runner

BATCH, LENGTH, ROWS = 16, 6, 120
comm, path = sys.argv[1:]
keras.config.set_floatx("float64")
keras.utils.set_random_seed(7)
draws = np.random.default_rng(7)
is_first = np.arange(2 * BATCH) % BATCH < BATCH // 2
# Each id but the padding occurs once in a batch, because plain Keras does not merge repeated ids.
ids = np.concatenate([1 + draws.permutation(ROWS)[: BATCH * LENGTH].reshape(BATCH, LENGTH) for _ in range(2)])
padded = np.where(np.arange(LENGTH) < np.where(is_first, 2, 6)[:, None], ids, 0).astype("int32")
weights = draws.uniform(0.8, 1.2, [2 * BATCH, LENGTH]) * np.where(is_first, 0.5, 3.0)[:, None]
words, word = draws.normal(size=(2 * BATCH, LENGTH, 1)), draws.normal(size=(2 * BATCH, 1))


def model(*, masks: bool, each_word: bool, reduction: str) -> Any:
    """Returns a compiled model that predicts a number for each word or for all words of an example."""
    given = keras.Input([LENGTH], dtype="int32")
    found = keras.layers.Embedding(ROWS + 1, 4, mask_zero=masks)(given)
    made = keras.Model(given, keras.layers.Dense(1)(keras.layers.LSTM(4, return_sequences=each_word)(found)))
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    made.compile(keras.optimizers.SGD(0.05), loss, weighted_metrics=["mae"])
    return made


CASES: dict[str, dict[str, Any]] = {
    "weights": {"sample_weight": weights},
    "mask before the output": {"masks": True, "each_word": False},
    "sum": {"reduction": "sum"},
    "mask": {"masks": True},
    "mean of weights": {"reduction": "mean_with_sample_weight", "sample_weight": weights},
}
left = {}
for name, case in CASES.items():
    options = {"masks": False, "each_word": True, "reduction": "sum_over_batch_size"}
    asked = {key: case.get(key, value) for key, value in options.items()}
    made = model(**asked)  # type: ignore[arg-type]
    before = np.concatenate([array.ravel() for array in made.get_weights()])
    data = {"x": padded if asked["masks"] else ids.astype("int32"), "y": words if asked["each_word"] else word}
    arguments = {"batch_size": BATCH, "shuffle": False, "sample_weight": case.get("sample_weight")}
    print("call", name, file=sys.stderr, flush=True)
    if comm == "plain":
        history = made.fit(**data, **arguments, epochs=2, steps_per_epoch=1)
    else:
        overrides = ["tracking=off"]
        history = parallax_runner.fit(
            made, **data, **arguments, epochs=2, steps_per_epoch=1, workers=2, comm=comm, overrides=overrides
        )
    after = np.concatenate([array.ravel() for array in made.get_weights()])
    logs = {key: [float(value) for value in each] for key, each in history.history.items()}
    left[name] = {"history": logs, "change": (after - before).tolist()}
with open(path, "w", encoding="utf-8") as file:
    json.dump(left, file)
