"""The orders of a table's rows: each epoch has each row once, and any part of an epoch is read alone."""

import numpy as np
import pytest

from parallax_runner.data.table import row_order
from parallax_runner.data.table.row_order import BLOCK_ROWS, WINDOW_BLOCKS, row_stream

SIZES = (1, 2, 5, BLOCK_ROWS, BLOCK_ROWS + 1, WINDOW_BLOCKS * BLOCK_ROWS * 2 + 1500)
KINDS = ("full", "keyed", "blocks", "off")


def stream_of(kind, size, seed=3):
    if kind == "keyed":
        return row_order.RowStream(row_order.ByKey(size=size, seed=seed), size=size)
    return row_stream(kind, size=size, seed=seed)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_has_each_row_once(kind, size):
    stream = stream_of(kind, size)
    for epoch in range(3):
        assert (np.sort(stream.elements(epoch * size, size)) == np.arange(size)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_an_epoch_is_read_alone(kind):
    size = 100_000
    whole = stream_of(kind, size).elements(0, 2 * size)
    for start in (0, 65_500, size - 7, 150_000):
        assert (stream_of(kind, size).elements(start, 100) == whole[start : start + 100]).all()


@pytest.mark.parametrize("kind", ["full", "keyed", "blocks"])
def test_epochs_and_seeds_differ(kind):
    size = 3000
    first = stream_of(kind, size).elements(0, size)
    assert (first != stream_of(kind, size).elements(size, size)).mean() > 0.5
    assert (first != stream_of(kind, size, seed=4).elements(0, size)).mean() > 0.5


@pytest.mark.parametrize("kind", ["full", "keyed"])
def test_a_full_shuffle_has_no_trend(kind):
    """Rows at neighbouring places are as far apart as two random rows are: a third of the size on average."""
    size = 200_000
    rows = stream_of(kind, size).elements(0, size)
    assert np.abs(np.diff(rows)).mean() / size == pytest.approx(1 / 3, abs=0.01)
    assert abs(np.corrcoef(np.arange(size), rows)[0, 1]) < 0.02


def test_blocks_are_shuffled_within_a_window_that_touches_few_places():
    size = 500 * BLOCK_ROWS
    rows = stream_of("blocks", size).elements(0, WINDOW_BLOCKS * BLOCK_ROWS)
    assert len(np.unique(rows // BLOCK_ROWS)) == WINDOW_BLOCKS
    first_batch = rows[:BLOCK_ROWS]
    assert len(np.unique(first_batch // BLOCK_ROWS)) > WINDOW_BLOCKS * 0.9


def test_a_large_table_has_no_index(monkeypatch):
    monkeypatch.setattr(row_order, "INDEX_ROWS", 100)
    assert isinstance(row_stream("full", size=101, seed=1)._order, row_order.ByKey)
    assert isinstance(row_stream("full", size=100, seed=1)._order, row_order.ByIndex)
    stream = row_stream("full", size=10**10, seed=1)
    rows = stream.elements(10**10 - 1000, 2000)
    assert rows.min() >= 0 and rows.max() < 10**10 and len(np.unique(rows)) == 2000
