"""`number`: a number, as it is or transformed, or the bucket that it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import (
    NOTHING_LEARNED,
    Counting,
    Faults,
    InputColumn,
    State,
    TableFeature,
)
from parallax_runner.data.table.columns.settings import ascending, bounds, flag, number, optional, setting
from parallax_runner.data.table.stored_table import Cell, RawColumn, Strings

MEAN, DEVIATION = "mean", "deviation"


@dataclass(frozen=True)
class Number(InputColumn):
    """Its feature is float32. In this order: a blank cell becomes `fill`, `clip` limits it, `log` is log(1 + x),
    with 0 for a negative x, and `standardize` makes the mean 0 and the standard deviation 1 over the training rows.
    With `buckets`, the feature is a category instead: the number of boundaries that are not above the result, int64.

    A logarithm that NumPy and TensorFlow round differently can be on two sides of a boundary. So the boundaries are
    mapped to the numbers before `log` and `standardize`, and training and a served model compare with these."""

    kind: ClassVar[str] = "number"

    fill: float | None = setting(None, optional(number))
    clip: tuple[float, ...] | None = setting(None, optional(bounds))
    log: bool = setting(False, flag)
    standardize: bool = setting(False, flag)
    buckets: tuple[float, ...] | None = setting(None, optional(ascending))

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.NUMBER)

    def counting(self, strings: Strings | None) -> Counting:
        return _Moments(self) if self.standardize else Counting()

    def faults(self, cells: Cells, strings: Strings | None) -> Faults | None:
        is_fine = np.isfinite(cells.values)
        if self.fill is not None:
            is_fine |= np.isnan(cells.values)
        rows = np.flatnonzero(~is_fine)
        return Faults(rows, lambda place: _reason(cells.values[rows[place]])) if len(rows) else None

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        """Returns the boundaries before `log` and `standardize`, or None without `buckets`."""
        if self.buckets is None:
            return None
        boundaries = np.array(self.buckets, dtype=np.float32)
        if self.log or self.standardize:
            boundaries = smallest_reaching(boundaries, lambda numbers: self._scaled(numbers, state))
        return _without_subnormals(boundaries)

    def described(self, state: State) -> TableFeature:
        if self.buckets is not None:
            return TableFeature("category", (), "int64", (len(self.buckets) + 1,))
        return TableFeature(self.kind, (), "float32")

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        if self.buckets is not None:
            assert lookup is not None
            numbers = _without_subnormals(self._limited(cells.values))
            return {"": np.searchsorted(lookup, numbers, side="right").astype(np.int64)}
        numbers = self.transformed(cells.values)
        if self.standardize:
            numbers = (numbers - state[MEAN]) / state[DEVIATION]
        return {"": numbers}

    def transformed(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the numbers before they are standardized, float32."""
        numbers = self._limited(numbers)
        return np.log1p(np.maximum(numbers, 0)) if self.log else np.asarray(numbers)

    def _limited(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the numbers before `log`, float32."""
        if self.fill is not None:
            numbers = np.where(np.isnan(numbers), np.float32(self.fill), numbers)
        if self.clip is not None:
            numbers = np.clip(numbers, *np.array(self.clip, dtype=np.float32))
        return np.asarray(numbers)

    def _scaled(self, numbers: np.ndarray, state: State) -> np.ndarray:
        """Returns limited numbers after `log` and `standardize`, float32. They are rounded once, so that no machine
        finds other boundaries."""
        exact = numbers.astype(np.float64)
        if self.log:
            exact = np.log1p(np.maximum(exact, 0))
        if self.standardize:
            exact = (exact - np.float64(state[MEAN])) / np.float64(state[DEVIATION])
        return exact.astype(np.float32)

    def raw_input(self, tf: Any) -> Any:
        return tf.TensorSpec([None], tf.float32)

    def raw_example(self, cells: Cells, strings: Strings | None) -> np.ndarray:
        return cells.values if self.fill is None else np.where(np.isnan(cells.values), self.fill, cells.values)

    def served(self, state: State, strings: Strings | None, raw: Any, tf: Any) -> dict[str, Any]:
        numbers = raw
        if self.fill is not None:
            numbers = tf.where(tf.math.is_nan(numbers), tf.cast(self.fill, tf.float32), numbers)
        if self.clip is not None:
            numbers = tf.clip_by_value(numbers, *self.clip)
        if self.buckets is not None:
            boundaries = self.lookup(state, strings)
            assert boundaries is not None
            return {"": tf.cast(tf.raw_ops.Bucketize(input=numbers, boundaries=boundaries.tolist()), tf.int64)}
        if self.log:
            numbers = tf.math.log1p(tf.maximum(numbers, 0))
        if self.standardize:
            numbers = (numbers - state[MEAN]) / state[DEVIATION]
        return {"": numbers}


def smallest_reaching(values: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Returns for each value the smallest float32 number at which a function that does not decrease reaches it. Inf
    stands for none, and -inf for each."""
    low = np.full(len(values), _place_of(-np.inf))
    high = np.full(len(values), _place_of(np.inf))
    while (low < high).any():
        middle = (low + high) // 2
        reaches = function(_number_at(middle)) >= values
        low, high = np.where(reaches, low, np.minimum(middle + 1, high)), np.where(reaches, middle, high)
    return _number_at(high)


def _place_of(number: float) -> int:
    """Returns the place of a number among all float32 numbers in ascending order."""
    bits = int(np.float32(number).view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF) - 1


def _number_at(places: np.ndarray) -> np.ndarray:
    bits = np.where(places >= 0, places, (-places - 1) | 0x80000000)
    return bits.astype(np.uint32).view(np.float32)


def _without_subnormals(numbers: np.ndarray) -> np.ndarray:
    """Returns the numbers with 0 for those that TensorFlow's ops take for 0."""
    return np.where(np.abs(numbers) < np.finfo(np.float32).tiny, np.float32(0), numbers)


def _reason(value: np.float32) -> str:
    if np.isinf(value):
        return "an infinite number"
    return "a blank cell; set the number that stands for it (fill: 0)"


class _Moments(Counting):
    """Computes the mean and the standard deviation. Adds what differs from the first number, so that large numbers that
    differ little lose no digits."""

    def __init__(self, column: Number) -> None:
        self._column = column
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        self._origin: float | None = None

    def add(self, cells: Cells) -> None:
        numbers = self._column.transformed(cells.values).astype(np.float64)
        if not len(numbers):
            return
        if self._origin is None:
            self._origin = float(numbers[0])
        shifted = numbers - self._origin
        self._count += len(shifted)
        self._sum += float(shifted.sum())
        self._squares += float(np.square(shifted).sum())

    def state(self) -> State:
        if self._origin is None:
            return NOTHING_LEARNED
        mean = self._sum / self._count
        variance = max(self._squares / self._count - mean**2, 0.0)
        deviation = variance**0.5 or 1.0  # equal numbers stay equal
        return {MEAN: np.array(self._origin + mean, np.float32), DEVIATION: np.array(deviation, np.float32)}
