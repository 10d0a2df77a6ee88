"""Decides by numbers whether a loss is a mean or a sum over examples: its value for a batch against the values for the
two halves of that batch."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Rounding errors relative to the values that are compared. In float32, they are about 1e-6. In 16-bit types, one
# rounding alone is 4e-3.
ROUNDING, ROUNDING_OF_16_BITS = 1e-4, 3e-2
# Losses that are this much smaller than the largest loss of the same batch can consist of rounding errors. An example
# is the distance between two predictions that differ only by dropout, which is off in a trial.
NEGLIGIBLE = 1e-6


class LossKind(enum.Enum):
    """How the value for a batch follows from the values for its halves. Each replica computes the loss of its own
    examples and a step uses the mean, so only `CONSTANT` and `MEAN` give the same step as one device."""

    CONSTANT = "constant"
    MEAN = "mean"
    SUM = "sum"
    NEITHER = "neither"
    UNKNOWN = "unknown"

    @property
    def differs(self) -> bool:
        """Whether a step of several replicas differs from a step of one device."""
        return self in (LossKind.SUM, LossKind.NEITHER)


@dataclass(frozen=True)
class LossValues:
    """A loss for a `whole` batch and for its two halves. `largest` is the largest absolute value of any loss in the
    same trial."""

    whole: float
    first: float
    second: float
    largest: float

    @property
    def is_finite(self) -> bool:
        """Whether the values can be compared."""
        return all(map(math.isfinite, (self.whole, self.first, self.second, self.largest)))

    def fits(self, expected: float, rounding: float) -> bool:
        """Returns whether the value of the whole batch equals `expected`, up to rounding errors."""
        scale = max(map(abs, (self.whole, self.first, self.second)))
        return abs(self.whole - expected) <= rounding * scale + NEGLIGIBLE * self.largest

    def is_mean(self, rounding: float) -> bool:
        """Returns whether the value of the whole batch is the mean of the values of its halves."""
        return self.fits((self.first + self.second) / 2, rounding)

    def is_sum(self, rounding: float) -> bool:
        """Returns whether the value of the whole batch is the sum of the values of its halves."""
        return self.fits(self.first + self.second, rounding)

    def is_constant(self, rounding: float) -> bool:
        """Returns whether the value of the whole batch is also the value of each of its halves."""
        return self.fits(self.first, rounding) and self.fits(self.second, rounding)

    def repeats(self, earlier: LossValues, rounding: float) -> bool:
        """Returns whether an earlier evaluation of the same examples had the same value, up to rounding errors."""
        return not self.is_finite or self.fits(earlier.whole, rounding)


def loss_kind(trials: Sequence[LossValues], rounding: float) -> LossKind:
    """Returns the kind that all trials of a loss fit. Trials whose values are not finite are ignored.

    A loss that fits several kinds, such as a loss of 0, is unknown if one of these kinds is a sum and another is not.
    """
    finite = [one for one in trials if one.is_finite]
    return _kind_of_finite(finite, rounding) if finite else LossKind.UNKNOWN


def _kind_of_finite(finite: Sequence[LossValues], rounding: float) -> LossKind:
    is_mean = all(one.is_mean(rounding) for one in finite)
    is_sum = all(one.is_sum(rounding) for one in finite)
    if is_mean and is_sum:
        return LossKind.UNKNOWN
    if is_sum:
        return LossKind.SUM
    if not is_mean:
        return LossKind.NEITHER
    is_constant = all(one.is_constant(rounding) for one in finite)
    return LossKind.CONSTANT if is_constant else LossKind.MEAN
