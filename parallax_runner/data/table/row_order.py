"""The order of a table's training rows in each epoch. Every order is computed by position, so any process can start
anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from parallax_runner.data.draws import keys
from parallax_runner.data.stream import epoch_order
from parallax_runner.data.table.rows_ahead import RowsAhead

FULL, BLOCKS, OFF = "full", "blocks", "off"
SHUFFLES = (FULL, BLOCKS, OFF)
# Up to this number of rows, an index holds the order of an epoch, in 8 bytes a row. Beyond it, the order is computed.
INDEX_ROWS = 2**22
BLOCK_ROWS = 1024  # rows that follow each other in the files
WINDOW_BLOCKS = 64  # blocks whose rows are mixed
ROUNDS = 6  # of the cipher; four make a permutation that looks random


class RowOrder(Protocol):
    """The order of the rows of each epoch."""

    def rows(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Returns the rows at these places of an epoch, int64 like `places`."""
        ...


class RowStream:
    """An endless stream of rows: all rows in each epoch."""

    def __init__(self, order: RowOrder, *, size: int) -> None:
        self._order, self._size = order, size

    def elements(self, start: int, count: int) -> np.ndarray:
        """Returns the rows of examples [start, start + count) of the stream, int64 [count]."""
        epochs, places = np.divmod(np.arange(start, start + count, dtype=np.int64), self._size)
        rows = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._order.rows(int(epoch), places[here])
        return rows


def row_stream(shuffle: str, *, size: int, seed: int) -> RowStream:
    """Returns the stream of `size` rows. `shuffle` is one of SHUFFLES."""
    if shuffle == OFF:
        return RowStream(AsStored(), size=size)
    if shuffle == BLOCKS:
        return RowStream(ByBlocks(size=size, seed=seed), size=size)
    order = ByIndex(size=size, seed=seed) if size <= INDEX_ROWS else ByKey(size=size, seed=seed)
    return RowStream(order, size=size)


class GoodRows:
    """The rows of a part without those that are skipped."""

    def __init__(self, rows: int, skipped: np.ndarray | None) -> None:
        """`skipped` has ascending rows below `rows`, int64; None: none."""
        self.count = rows if skipped is None else rows - len(skipped)
        # Number of good rows before each skipped row.
        self._before = None if skipped is None else skipped - np.arange(len(skipped))

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the rows that these numbers of good rows stand for, int64."""
        if self._before is None:
            return numbers
        return numbers + np.searchsorted(self._before, numbers, side="right")


class AsStored:
    """The order of the files."""

    def rows(self, epoch: int, places: np.ndarray) -> np.ndarray:
        return places


class ByIndex:
    """A permutation that is held in memory."""

    def __init__(self, *, size: int, seed: int) -> None:
        self._orders = _Kept(lambda epoch: epoch_order(size=size, seed=seed, epoch=epoch))

    def rows(self, epoch: int, places: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._orders.get(epoch)[places]
        return found


class ByKey:
    """A permutation that is computed: a Feistel cipher on the smallest even number of bits that holds all places. A
    result that is no row is encrypted again (cycle walking), which happens less than three times on average."""

    def __init__(self, *, size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self._half_bits = max(1, -(-(size - 1).bit_length() // 2))
        self._ahead = RowsAhead(self._computed, size=size)

    def rows(self, epoch: int, places: np.ndarray) -> np.ndarray:
        return self._ahead.rows(epoch, places)

    def _computed(self, epoch: int, places: np.ndarray) -> np.ndarray:
        round_keys = keys_of_epoch(self._seed, epoch)
        found = self._encrypted(places.astype(np.uint64), round_keys)
        outside = np.flatnonzero(found >= self._size)
        while len(outside):
            found[outside] = self._encrypted(found[outside], round_keys)
            outside = outside[found[outside] >= self._size]
        return found.astype(np.int64)

    def _encrypted(self, values: np.ndarray, round_keys: list[np.uint64]) -> np.ndarray:
        bits = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> bits, values & mask
        for key in round_keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        encrypted: np.ndarray = (left << bits) | right
        return encrypted


def keys_of_epoch(seed: int, epoch: int) -> list[np.uint64]:
    """Returns the keys of the rounds of an epoch's cipher."""
    (first,) = keys(seed, count=1)
    return list(np.random.SeedSequence([int(first), epoch]).generate_state(ROUNDS, np.uint64))


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64, as in data/draws.py."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


class ByBlocks:
    """Blocks of rows in a random order, and a random order of the rows within each window of blocks. A step touches few
    places of the files, so this suits a table that is larger than the memory."""

    def __init__(self, *, size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self._blocks = -(-size // BLOCK_ROWS)
        self._orders = _Kept(lambda epoch: epoch_order(size=self._blocks, seed=seed, epoch=epoch))
        self._windows: dict[tuple[int, int], np.ndarray] = {}

    def rows(self, epoch: int, places: np.ndarray) -> np.ndarray:
        found = np.empty(len(places), dtype=np.int64)
        windows, inside = np.divmod(places, WINDOW_BLOCKS * BLOCK_ROWS)
        for window in np.unique(windows):
            here = windows == window
            found[here] = self._window(epoch, int(window))[inside[here]]
        return found

    def _window(self, epoch: int, window: int) -> np.ndarray:
        """Returns the rows of a window in their order."""
        if (epoch, window) not in self._windows:
            if len(self._windows) >= 4:  # a step and its neighbours on other ranks
                self._windows.pop(next(iter(self._windows)))
            self._windows[epoch, window] = self._mixed_rows(epoch, window)
        return self._windows[epoch, window]

    def _mixed_rows(self, epoch: int, window: int) -> np.ndarray:
        start = window * WINDOW_BLOCKS * BLOCK_ROWS
        count = min(WINDOW_BLOCKS * BLOCK_ROWS, self._size - start)
        rows = self._in_blocks(epoch, np.arange(start, start + count))
        mixed: np.ndarray = rows[_order_of_window(self._seed, epoch, window, count)]
        return mixed

    def _in_blocks(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Returns the rows at these places if only the blocks are shuffled. The last block can be shorter."""
        order = self._orders.get(epoch)
        short = self._blocks * BLOCK_ROWS - self._size
        turn_of_last = int(np.flatnonzero(order == self._blocks - 1)[0])
        is_after_last = places >= (turn_of_last + 1) * BLOCK_ROWS - short
        turns, inside = np.divmod(places + np.where(is_after_last, short, 0), BLOCK_ROWS)
        rows: np.ndarray = order[turns] * BLOCK_ROWS + inside
        return rows


def _order_of_window(seed: int, epoch: int, window: int, count: int) -> np.ndarray:
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch, window])).random_raw(count)
    return np.argsort(draws, kind="stable")


class _Kept:
    """The orders of an epoch and of its neighbours, between which ranks alternate near the end of an epoch."""

    def __init__(self, make: Callable[[int], np.ndarray]) -> None:
        self._make = make
        self._orders: dict[int, np.ndarray] = {}

    def get(self, epoch: int) -> np.ndarray:
        """Returns the order of an epoch."""
        if epoch not in self._orders:
            self._orders = {kept: order for kept, order in self._orders.items() if abs(kept - epoch) == 1}
            self._orders[epoch] = self._make(epoch)
        return self._orders[epoch]
