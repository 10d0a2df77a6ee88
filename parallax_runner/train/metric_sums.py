"""Sums of metrics over the batches of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def added(sums: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Returns `sums` plus the values of one more batch, as float64 arrays. Empty `sums` count as zeros."""
    values = [np.asarray(value, np.float64) for value in values]
    return [one + value for one, value in zip(sums, values, strict=True)] if sums else values


def as_field(sums: Sequence[Any]) -> dict[str, Any]:
    """Returns a dict with the report field that contains the sums, or an empty dict if there are no sums."""
    return {"metrics": [one.tolist() for one in sums]} if sums else {}
