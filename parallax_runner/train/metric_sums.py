"""Sums of metrics over batches, steps and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class Last:
    """Values of the newest step: the sum of `weight` batches' `values`. `step` numbers the step; it can also number a
    validation batch. `weight` is 0 if there are no values."""

    step: int = 0
    weight: float = 0.0
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, step: int, weight: float, values: Sequence[Any]) -> Self:
        """Returns the values of a step. If there are none, the weight is 0."""
        return cls(step, weight, tuple(map(float, values))) if values else cls()

    def plus(self, more: Last) -> Last:
        """Returns the values of the newer step. If both are of the same step, adds them."""
        if not self.weight or not more.weight:
            return self if self.weight else more
        if self.step != more.step:
            return max(self, more, key=lambda one: one.step)
        added = tuple(one + other for one, other in zip(self.values, more.values, strict=True))
        return Last(self.step, self.weight + more.weight, added)

    @property
    def means(self) -> tuple[float, ...]:
        """The mean of each value over the batches of the step."""
        return tuple(value / self.weight for value in self.values)


@dataclass(frozen=True)
class Sums:
    """Sums of several arrays, with twice the precision of float64. `values` are the sums, rounded to float64. `rests`
    are the differences between the sums and `values`. Both are lists of float64 arrays, and both are empty if nothing
    has been added. `last` are the values of which only the newest step counts.

    A run that is stopped and resumed adds the same numbers in other groups than an unbroken run. With float64 alone,
    the results would differ in the last bits.
    """

    values: list[np.ndarray]
    rests: list[np.ndarray]
    last: Last = Last()

    @classmethod
    def of(cls, values: Sequence[Any], rests: Sequence[Any] = (), last: Last | Sequence[Any] = ()) -> Self:
        """Returns the sums of one batch, or the sums in a report, which are nested lists. No `rests` count as zeros. In
        a report, `last` is a list of the step, the weight and the values."""
        arrays = [np.asarray(value, np.float64) for value in values]
        found = [np.asarray(rest, np.float64) for rest in rests]
        return cls(arrays, found or [np.zeros_like(array) for array in arrays], _last_of(last))

    @classmethod
    def total(cls, many: Iterable[Sums]) -> Sums:
        """Returns the total of several sums."""
        return reduce(Sums.plus, many, NOTHING)

    def plus(self, more: Sums) -> Sums:
        """Returns the elementwise total. Empty sums count as zeros."""
        last = self.last.plus(more.last)
        if not self.values or not more.values:
            one = self if self.values else more
            return Sums(one.values, one.rests, last)
        pairs = [_added(*each) for each in zip(self.values, self.rests, more.values, more.rests, strict=True)]
        return Sums([value for value, _ in pairs], [rest for _, rest in pairs], last)

    def times(self, factor: float) -> Sums:
        """Returns the sums of a batch that counts `factor` times."""
        last = replace(self.last, weight=factor * self.last.weight, values=tuple(factor * v for v in self.last.values))
        return Sums([factor * one for one in self.values], [factor * one for one in self.rests], last)

    def divided_by(self, divisor: float) -> Sums:
        """Returns one of `divisor` equal parts. Integers that `divisor` divides stay integers."""
        last = replace(
            self.last, weight=self.last.weight / divisor, values=tuple(v / divisor for v in self.last.values)
        )
        return Sums([one / divisor for one in self.values], [one / divisor for one in self.rests], last)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been added."""
        return not self.values and not self.last.weight

    def fields(self) -> dict[str, Any]:
        """Returns the fields that contain the sums in a report or in a checkpoint's sidecar, or an empty dict if there
        are no sums."""
        found: dict[str, Any] = {}
        if self.values:
            found["metrics"] = [value.tolist() for value in self.values]
            found["metric_rests"] = [rest.tolist() for rest in self.rests]
        if self.last.weight:
            found["metric_last"] = [self.last.step, self.last.weight, list(self.last.values)]
        return found

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the sums in the fields that `fields` has returned."""
        return cls.of(fields.get("metrics", ()), fields.get("metric_rests", ()), fields.get("metric_last", ()))


def _last_of(given: Last | Sequence[Any]) -> Last:
    if isinstance(given, Last):
        return given
    if not given:
        return Last()
    step, weight, values = given
    return Last(step, weight, tuple(values))


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
