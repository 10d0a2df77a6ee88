"""Sums of metrics over the batches of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def added(sums: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """`sums` and what one more batch adds, as arrays of float64; no sums are zeros."""
    values = [np.asarray(value, np.float64) for value in values]
    return [one + value for one, value in zip(sums, values, strict=True)] if sums else values


def as_field(sums: Sequence[Any]) -> dict[str, Any]:
    """The field of a report that has them: none where there are no sums."""
    return {"metrics": [one.tolist() for one in sums]} if sums else {}
