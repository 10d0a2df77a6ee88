"""Sums of metrics over batches, steps and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class Sums:
    """Sums of several arrays, with twice the precision of float64. `values` are the sums, rounded to float64. `rests`
    are the differences between the sums and `values`. Both are lists of float64 arrays, and both are empty if nothing
    has been added.

    A run that is stopped and resumed adds the same numbers in other groups than an unbroken run. With float64 alone,
    the results would differ in the last bits.
    """

    values: list[np.ndarray]
    rests: list[np.ndarray]

    @classmethod
    def of(cls, values: Sequence[Any], rests: Sequence[Any] = ()) -> Self:
        """Returns the sums of one batch, or the sums in a report, which are nested lists. No `rests` count as
        zeros."""
        arrays = [np.asarray(value, np.float64) for value in values]
        found = [np.asarray(rest, np.float64) for rest in rests]
        return cls(arrays, found or [np.zeros_like(array) for array in arrays])

    @classmethod
    def total(cls, many: Iterable[Sums]) -> Sums:
        """Returns the total of several sums."""
        return reduce(Sums.plus, many, NOTHING)

    def plus(self, more: Sums) -> Sums:
        """Returns the elementwise total. Empty sums count as zeros."""
        if not self.values or not more.values:
            return self if self.values else more
        pairs = [_added(*each) for each in zip(self.values, self.rests, more.values, more.rests, strict=True)]
        return Sums([value for value, _ in pairs], [rest for _, rest in pairs])

    def fields(self) -> dict[str, Any]:
        """Returns the fields that contain the sums in a report or in a checkpoint's sidecar, or an empty dict if there
        are no sums."""
        if not self.values:
            return {}
        return {
            "metrics": [value.tolist() for value in self.values],
            "metric_rests": [rest.tolist() for rest in self.rests],
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the sums in the fields that `fields` has returned."""
        return cls.of(fields.get("metrics", ()), fields.get("metric_rests", ()))


NOTHING = Sums([], [])


def _added(value: Any, rest: Any, other: Any, other_rest: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sum of two numbers, each of which is a value and a rest (Knuth's TwoSum)."""
    with np.errstate(invalid="ignore", over="ignore"):
        high = np.asarray(value + other)
        share = high - value
        low = (value - (high - share)) + (other - share) + rest + other_rest
        total = np.asarray(high + low)
        left = np.asarray(low - (total - high))
        is_finite = np.isfinite(high)
        return np.where(is_finite, total, high), np.where(is_finite, left, 0.0)
