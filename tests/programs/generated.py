"""Batches of 7, 7 and 3 examples that a generator yields, and trains on in epochs of four steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.programs import made_batches
from tests.programs.made_batches import ROWS, SIZES, features_of, labels_of
from tests.programs.program import Program

STEPS, EPOCHS = 4, 3


def batches() -> Iterator[Any]:
    """Yields exactly the batches of the training. The labels grow from batch to batch."""
    start = 0
    for number in range(STEPS * EPOCHS):
        size = SIZES[number % len(SIZES)]
        numbers = np.arange(start, start + size) % ROWS
        start += size
        yield features_of(numbers), labels_of(numbers) + 0.1 * number


def make() -> Program:
    """Returns the model and its data."""
    made = made_batches.make()
    return Program(made.model, {**made.arguments, "x": batches(), "steps_per_epoch": STEPS, "epochs": EPOCHS})
