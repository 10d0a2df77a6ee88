"""The order of training examples, which form an endless stream that is reshuffled in each epoch."""

from __future__ import annotations

import numpy as np


class ShuffledStream:
    """A stream of shuffled examples. Example i is element `order(i // size)[i % size]` of the data.

    The order of an epoch depends only on (seed, epoch), so any process can start reading at any position.
    """

    def __init__(self, *, size: int, seed: int) -> None:
        """`size` is the number of examples in an epoch, at least 1. `seed` is 0 or more."""
        self._size = size
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}

    def elements(self, start: int, count: int) -> np.ndarray:
        """Returns the indices in the data of examples [start, start + count) of the stream, int64 [count]."""
        numbers = np.arange(start, start + count, dtype=np.int64)
        epochs, positions = np.divmod(numbers, self._size)
        elements = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            elements[here] = self._order(int(epoch))[positions[here]]
        return elements

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            # Near the end of an epoch, ranks alternate between two epochs. The orders of older epochs are not needed
            # again.
            self._orders = {kept: order for kept, order in self._orders.items() if abs(kept - epoch) == 1}
            self._orders[epoch] = epoch_order(size=self._size, seed=self._seed, epoch=epoch)
        return self._orders[epoch]


def epoch_order(*, size: int, seed: int, epoch: int) -> np.ndarray:
    """Returns a permutation of range(size), int64 [size], which depends only on the arguments.

    NumPy guarantees the raw output of its bit generators across releases, but not the output of `permutation`, and a
    run can be resumed with a different release of NumPy. Repeated 64-bit numbers do no harm, since the sort is stable.
    """
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(size)
    return np.argsort(draws, kind="stable")
