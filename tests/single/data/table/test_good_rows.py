"""A block with bad rows gives the same good rows as the block without them, and stops early if a column is wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.arrow_reader import ArrowBlock
from parallax_runner.data.table.good_rows import GoodRows, good_rows
from parallax_runner.data.table.raw_block import Fault
from parallax_runner.data.table.read_columns import Lists, ReadColumn
from parallax_runner.data.table.stored_table import Cell
from tests.single.data.table.rows_of import columns_of

READ = [ReadColumn.of(column) for column in columns_of(i="integer", l="number list")]


def _lines_of(found: GoodRows) -> np.ndarray:
    return np.arange(found.first_line, found.first_line + found.rows) if found.lines is None else found.lines


def block_of(integers: list[str | None], lists: list[str | None], first_row: int = 1) -> ArrowBlock:
    return ArrowBlock(pa.record_batch({"i": pa.array(integers, pa.string()), "l": pa.array(lists)}), first_row)


def cells(found: GoodRows) -> tuple[list[int | None], list[int], list[float | None]]:
    integers, lists = found.columns
    assert isinstance(integers, pa.Array) and isinstance(lists, Lists)
    return integers.to_pylist(), lists.lengths.tolist(), lists.values.to_pylist()


@pytest.mark.parametrize("seed", range(8))
def test_bad_rows_are_found_and_the_others_are_as_without_them(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = int(generator.integers(1, 70))
    is_bad = generator.random(rows) < generator.choice([0.02, 0.3, 1.0])
    integers = ["x" if bad else str(row) for row, bad in enumerate(is_bad)]
    lists = ["|".join("1.5" for _ in range(row % 4)) for row in range(rows)]
    found = good_rows(block_of(integers, lists, first_row=10), READ, most_bad=rows + 1)
    kept = np.flatnonzero(~is_bad)
    expected = good_rows(block_of([integers[row] for row in kept], [lists[row] for row in kept]), READ, most_bad=1)
    assert cells(found) == cells(expected)
    assert (_lines_of(found) - 10).tolist() == kept.tolist()
    assert [(one.place, one.number - 10) for one in found.bad] == [("row", row) for row in np.flatnonzero(is_bad)]
    assert {one.fault for one in found.bad} <= {Fault("an integer", "i", "x")}


def test_the_first_bad_cell_of_a_row_is_named() -> None:
    found = good_rows(block_of(["1", "2", "x"], ["1", "inf", "y"]), READ, most_bad=10)
    expected = "a list, each value a finite number"
    assert [one.fault for one in found.bad] == [Fault(expected, "l", "inf"), Fault("an integer", "i", "x")]


def test_a_wrong_column_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    read = ArrowBlock.columns
    monkeypatch.setattr(
        ArrowBlock, "columns", lambda self, columns: [tried.append(self.batch.num_rows), *read(self, columns)][1:]
    )
    found = good_rows(block_of(["x"] * 4096, [""] * 4096), READ, most_bad=1)
    assert [one.number for one in found.bad] == [1]
    assert sum(tried) <= 2 * 4096


def test_the_column_of_the_bounds_may_be_one_of_the_table() -> None:
    """It is read a second time, with the type of the bounds."""
    dates = ReadColumn("i", Cell.STRING, pa.string())
    *_, last = good_rows(block_of(["01", "2"], ["", ""]), [*READ, dates], most_bad=1).columns
    assert isinstance(last, pa.Array)
    assert last.to_pylist() == ["01", "2"]


def test_a_good_block_has_consecutive_lines_without_an_array() -> None:
    found = good_rows(block_of(["1", None], ["", None], first_row=7), READ, most_bad=1)
    assert (found.first_line, found.lines, _lines_of(found).tolist()) == (7, None, [7, 8])
