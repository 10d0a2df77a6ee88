"""Tries an optimizer on a small table to see which rows its formula changes, and whether a row depends on other
rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

log = logging.getLogger(__name__)
ROWS, WIDTH, TRIALS = 4, 3, 3


class RowProbe:
    """Tries optimizers, and caches the results by class and configuration.

    Variables for a trial are created inside the context manager `unrecorded`.
    """

    def __init__(self, unrecorded: Callable[[], AbstractContextManager[None]]) -> None:
        self._unrecorded = unrecorded
        self._known: dict[str, tuple[bool, bool]] = {}

    def keeps_untouched_rows(self, optimizer: Any) -> bool:
        """Returns whether rows are independent, and an update leaves a row with zero gradient and its slots
        bit-identical."""
        return self._answers(optimizer)[0] and self._answers(optimizer)[1]

    def works_by_row(self, optimizer: Any) -> bool:
        """Returns whether an update of only some rows gives these rows the same values as an update of all rows."""
        return self._answers(optimizer)[1]

    def _answers(self, optimizer: Any) -> tuple[bool, bool]:
        import tensorflow as tf

        with tf.init_scope(), self._unrecorded():
            key = f"{type(optimizer)} {json.dumps(optimizer.get_config(), default=str, sort_keys=True)}"
            if key not in self._known:
                try:
                    self._known[key] = _keeps(optimizer), _by_row(optimizer)
                except Exception as error:  # for example, the optimizer does not support float64
                    log.debug("%s cannot be tried: %s", type(optimizer).__name__, error)
                    self._known[key] = False, False
        return self._known[key]


def _keeps(optimizer: Any) -> bool:
    generator = np.random.default_rng(5)
    made = _Small(optimizer, ROWS, generator)
    for trial in range(TRIALS):
        if trial:  # the first trial tests a row that has not been updated yet
            made.update(generator.normal(size=(ROWS, WIDTH)))
        gradient = generator.normal(size=(ROWS, WIDTH))
        gradient[trial] = 0.0
        before = [array[trial] for array in made.arrays()]
        made.update(gradient)
        if any((old != new[trial]).any() for old, new in zip(before, made.arrays(), strict=True)):
            return False
    return True


def _by_row(optimizer: Any) -> bool:
    generator = np.random.default_rng(6)
    whole, part = _Small(optimizer, ROWS, generator), _Small(optimizer, ROWS - 2, generator)
    for _ in range(TRIALS):
        part.set([array[1:-1] for array in whole.arrays()])
        gradient = generator.normal(size=(ROWS, WIDTH))
        whole.update(gradient)
        part.update(gradient[1:-1])
        for one, other in zip(whole.arrays(), part.arrays(), strict=True):
            if one[1:-1].shape != other.shape or not np.allclose(one[1:-1], other, rtol=1e-12, atol=1e-14):
                return False
    return True


class _Small:
    """A copy of an optimizer, and a float64 variable that the copy updates."""

    def __init__(self, optimizer: Any, rows: int, generator: np.random.Generator) -> None:
        import keras

        self.variable = keras.Variable(generator.normal(size=(rows, WIDTH)), dtype="float64", name="table")
        self.optimizer = type(optimizer).from_config(optimizer.get_config())
        self.optimizer.build([self.variable])

    def arrays(self) -> list[np.ndarray]:
        """Returns the values of the variable and its slots."""
        kept = [one for one in self.optimizer.variables if len(one.shape) > 0]
        return [one.numpy().copy() for one in (self.variable, *kept)]

    def set(self, arrays: list[np.ndarray]) -> None:
        """Sets the values of the variable and its slots."""
        kept = [one for one in self.optimizer.variables if len(one.shape) > 0]
        for one, array in zip((self.variable, *kept), arrays, strict=True):
            if one.shape == array.shape:
                one.assign(array)

    def update(self, gradient: np.ndarray) -> None:
        """Applies one update with a dense gradient, without clipping, decay or averages."""
        import tensorflow as tf

        self.optimizer._backend_update_step([tf.constant(gradient)], [self.variable], tf.constant(0.1, tf.float64))
        self.optimizer.iterations.assign_add(1)
