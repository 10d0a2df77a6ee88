"""Rows that are computed ahead are those of their own places, and few calls compute them."""

from __future__ import annotations

import numpy as np
import pytest

from parallax_runner.data.table import rows_ahead
from parallax_runner.data.table.row_order import ByKey, RowStream
from parallax_runner.data.table.rows_ahead import RowsAhead

SIZE = 1000


class Computation:
    """Counts its calls. The row at a place is the place and the epoch."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int, places: np.ndarray) -> np.ndarray:
        self.calls += 1
        assert places.min(initial=0) >= 0 and places.max(initial=0) < SIZE
        return places + SIZE * epoch


@pytest.mark.parametrize(("batch", "ranks", "rank"), [(10, 1, 0), (10, 4, 3), (7, 3, 1), (1, 2, 0), (600, 1, 0)])
def test_batches_of_a_rank(batch: int, ranks: int, rank: int) -> None:
    compute = Computation()
    ahead = RowsAhead(compute, size=SIZE)
    batches = 0
    for epoch in range(3):
        for first in range(rank * batch, SIZE, ranks * batch):
            places = np.arange(first, min(first + batch, SIZE))
            np.testing.assert_array_equal(ahead.rows(epoch, places), places + SIZE * epoch)
            batches += 1
    assert compute.calls <= min(batches, 3 * 4), "the first, the second, and a last one that is short"


def test_places_in_any_order() -> None:
    ahead = RowsAhead(Computation(), size=SIZE)
    generator = np.random.default_rng(0)
    for _ in range(300):
        first, count = int(generator.integers(0, 990)), int(generator.integers(0, 10))
        places = np.arange(first, first + count)
        for given in (places, places[::-1], generator.integers(0, SIZE, count)):
            np.testing.assert_array_equal(ahead.rows(1, given), given + SIZE)


def test_large_batches_are_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_ahead, "ROWS_AHEAD", 64)
    compute = Computation()
    ahead = RowsAhead(compute, size=SIZE)
    for first in range(0, 1000, 100):
        ahead.rows(0, np.arange(first, first + 100))
    assert compute.calls == 10


def test_a_keyed_order_does_not_depend_on_batches() -> None:
    expected = np.concatenate([ByKey(size=SIZE, seed=3).rows(epoch, np.arange(SIZE)) for epoch in range(2)])
    assert sorted(expected[:SIZE]) == list(range(SIZE))
    for batch in (1, 16, 33):
        stream = RowStream(ByKey(size=SIZE, seed=3), size=SIZE)
        rows = [stream.elements(first, batch) for first in range(0, 2 * SIZE, batch)]
        np.testing.assert_array_equal(np.concatenate(rows)[: 2 * SIZE], expected)
