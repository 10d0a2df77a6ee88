"""The columns that tell to which row of the data a prediction belongs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from parallax_runner.data.dataset import Dataset

ROW = "row"


@runtime_checkable
class WithIds(Protocol):
    """A `Dataset` whose rows have identifiers, such as a user and an item."""

    def ids(self, part: str, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns the identifiers of rows [start, start + size) of `part`, by column."""
        ...


def identities(dataset: Dataset, part: str, start: int, size: int) -> dict[str, np.ndarray]:
    """Returns the identifiers of rows [start, start + size) of `part`. Without identifiers, these are the numbers of
    the rows, int64 [size]."""
    found = dataset.ids(part, start, size) if isinstance(dataset, WithIds) else {}
    return found or {ROW: np.arange(start, start + size)}
