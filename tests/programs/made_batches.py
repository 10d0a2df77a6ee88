"""Batches of 7, 7 and 3 examples that a `keras.utils.PyDataset` makes. Another one makes validation batches, and only
its examples have weights.

The last training batch has as many examples as three workers, and one more than two. `test_step` returns values that
depend on which examples are a batch.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.programs.program import Program

SIZES, VALIDATION_SIZES = (7, 7, 3), (4, 5, 2)
FEATURES, ROWS = 3, 20


class Batches(keras.utils.PyDataset):
    """Makes batches of `sizes`. The labels grow from epoch to epoch, from validation to validation and from call to
    call."""

    def __init__(self, first: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.numbers, self.sizes, self.passes = (first + np.arange(sum(sizes))) % ROWS, sizes, 0

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        start = sum(self.sizes[:index])
        numbers = self.numbers[start : start + self.sizes[index]]
        return features_of(numbers), labels_of(numbers) + 0.1 * self.passes

    def on_epoch_end(self) -> None:
        self.passes += 1


class Weighted(Batches):
    """Weighs each example."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x, y, 0.5 + x["id"] / ROWS


class ByBatch(keras.Model):
    """Adds to Keras' `test_step` a mean over batches and the largest error of the last batch."""

    def test_step(self, data: Any) -> dict[str, Any]:
        logs = super().test_step(data)
        x, y, _ = data
        largest = keras.ops.max(keras.ops.abs(y - self(x, training=False)))
        self.mean_of_batches.update_state(largest)
        return {**logs, "largest": self.mean_of_batches.result(), "last": largest}


def features_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    return {"id": numbers, "waves": np.sin(np.outer(numbers, np.arange(1, FEATURES + 1)))}


def labels_of(numbers: np.ndarray) -> np.ndarray:
    return np.cos(numbers)[:, None]


def make() -> Program:
    """Returns the model and its data."""
    inputs = {"id": keras.Input([], dtype="int64", name="id"), "waves": keras.Input([FEATURES], name="waves")}
    row = keras.layers.Embedding(ROWS, 4, name="table")(inputs["id"])
    hidden = keras.layers.Dense(5, activation="tanh")(keras.layers.Concatenate()([row, inputs["waves"]]))
    model = ByBatch(inputs, keras.layers.Dense(1)(hidden))
    model.mean_of_batches = keras.metrics.Mean(name="largest")
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], weighted_metrics=["mse"])
    data = {"x": Batches(3, SIZES), "validation_data": Weighted(0, VALIDATION_SIZES)}
    return Program(model, {**data, "epochs": 3}, calls=2)
