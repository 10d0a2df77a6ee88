"""Computes axis limits that keep noise from looking like a real difference."""

from __future__ import annotations

import math
from collections.abc import Iterable

LEAST_SPAN = 0.1  # as a fraction of the largest absolute value
MARGIN = 0.05  # on each side, as a fraction of the span


def calm_limits(values: Iterable[float]) -> tuple[float, float] | None:
    """Returns limits around the finite values. The limits are at least a tenth of the largest absolute value apart, so
    values that differ by a thousandth appear close together. Returns None if no value is finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    least = LEAST_SPAN * max(abs(low), abs(high)) or 1.0
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
    margin = MARGIN * (high - low)
    return low - margin, high + margin
