"""Computes the rows of several batches at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

ROWS_AHEAD = 2**14  # rows that are computed at once, 8 bytes each
Batch = tuple[int, int, int]  # epoch, first place, number of places


class RowsAhead:
    """Computes rows with `compute(epoch, places)`. `size` is the number of places of an epoch.

    The batches of a rank follow each other at the same distance. So the rows of the next batches are computed with
    those of a batch, because many calls of NumPy with few numbers each take longer.
    """

    def __init__(self, compute: Callable[[int, np.ndarray], np.ndarray], *, size: int) -> None:
        self._compute, self._size = compute, size
        self._previous: Batch = (0, 0, 0)
        self._ready: dict[Batch, np.ndarray] = {}

    def rows(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Returns the rows at these places of an epoch, int64 like `places`."""
        if not _are_consecutive(places):
            return self._compute(epoch, places)
        batch = (epoch, int(places[0]), len(places))
        if batch not in self._ready:
            self._ready = self._computed(batch, self._distance_to(batch))
        self._previous = batch
        return self._ready.pop(batch)

    def _distance_to(self, batch: Batch) -> int:
        """Returns the distance from the batch before, or 0 if nothing can be concluded from it."""
        epoch, first, count = self._previous
        is_alike = (epoch, count) == (batch[0], batch[2])
        return max(0, batch[1] - first) if is_alike else 0

    def _computed(self, batch: Batch, distance: int) -> dict[Batch, np.ndarray]:
        epoch, first, count = batch
        batches = 1
        if distance:
            until_end = (self._size - first - count) // distance + 1
            batches = max(1, min(ROWS_AHEAD // count, until_end))
        firsts = first + distance * np.arange(batches)
        places = (firsts[:, np.newaxis] + np.arange(count)).reshape(-1)
        rows = self._compute(epoch, places).reshape(batches, count)
        return {(epoch, int(start), count): some for start, some in zip(firsts, rows, strict=True)}


def _are_consecutive(places: np.ndarray) -> bool:
    return len(places) > 0 and bool(np.all(np.diff(places) == 1))
