"""`number`: a number, as it is or transformed, or the bucket that it is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import NOTHING_LEARNED, Column, Counting, Faults, State, TableFeature
from parallax_runner.data.table.columns.settings import ascending, bounds, flag, number, optional, setting
from parallax_runner.data.table.stored_table import Cell, RawColumn, Strings

MEAN, DEVIATION = "mean", "deviation"


@dataclass(frozen=True)
class Number(Column):
    """Its feature is float32. In this order: a blank cell becomes `fill`, `clip` limits it, `log` is log(1 + x),
    with 0 for a negative x, and `standardize` makes the mean 0 and the standard deviation 1 over the training rows.
    With `buckets`, the feature is a category instead: the number of boundaries that are not above it, int64."""

    kind: ClassVar[str] = "number"

    fill: float | None = setting(None, optional(number))
    clip: tuple[float, ...] | None = setting(None, optional(bounds))
    log: bool = setting(False, flag)
    standardize: bool = setting(False, flag)
    buckets: tuple[float, ...] | None = setting(None, optional(ascending))

    def check(self) -> str | None:
        if self.buckets is not None and (self.log or self.standardize):
            return "buckets are boundaries of the number itself; leave out log and standardize"
        return None

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

    def described(self, state: State) -> TableFeature:
        if self.buckets is not None:
            return TableFeature("category", (), "int64", (len(self.buckets) + 1,))
        return TableFeature(self.kind, (), "float32")

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        numbers = self.transformed(cells.values)
        if self.buckets is not None:
            boundaries = np.array(self.buckets, dtype=np.float32)
            return {"": np.searchsorted(boundaries, numbers, side="right").astype(np.int64)}
        if self.standardize:
            numbers = (numbers - state[MEAN]) / state[DEVIATION]
        return {"": numbers}

    def transformed(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the numbers before they are standardized, float32."""
        if self.fill is not None:
            numbers = np.where(np.isnan(numbers), np.float32(self.fill), numbers)
        if self.clip is not None:
            numbers = np.clip(numbers, *np.array(self.clip, dtype=np.float32))
        return np.log1p(np.maximum(numbers, 0)) if self.log else np.asarray(numbers)

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
            return {"": tf.cast(tf.raw_ops.Bucketize(input=numbers, boundaries=list(self.buckets)), tf.int64)}
        if self.log:
            numbers = tf.math.log1p(tf.maximum(numbers, 0))
        if self.standardize:
            numbers = (numbers - state[MEAN]) / state[DEVIATION]
        return {"": numbers}


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
