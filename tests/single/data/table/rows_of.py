"""Tables as lists of rows, to compare with what files become."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.data.table.stored_table import MISSING_INTEGER, Cell, RawColumn, StoredTable

Row = tuple[Any, ...]


def rows_of(table: StoredTable, part: str = "train") -> list[Row]:
    """Returns the rows of a part: a missing cell is None, and a list cell is a tuple."""
    stored = table.parts[part]
    columns = [_cells(table, part, column) for column in table.columns]
    assert all(len(column) == stored.rows for column in columns)
    return list(zip(*columns, strict=True))


def _cells(table: StoredTable, part: str, column: RawColumn) -> list[Any]:
    stored = table.parts[part]
    if column.is_list:
        found = stored.lists[column.name]
        values = _values(table, column, found.values)
        offsets = found.offsets.tolist()
        return [tuple(values[start:stop]) for start, stop in itertools.pairwise(offsets)]
    cell, place = table.place_of(column.name)
    matrix = {Cell.NUMBER: stored.numbers, Cell.INTEGER: stored.integers, Cell.STRING: stored.codes}[cell]
    return _values(table, column, matrix[:, place])


def _values(table: StoredTable, column: RawColumn, cells: np.ndarray) -> list[Any]:
    if column.cell is Cell.NUMBER:
        return [None if np.isnan(value) else float(value) for value in cells]
    if column.cell is Cell.INTEGER:
        return [None if value == MISSING_INTEGER else int(value) for value in cells]
    strings = table.strings[column.name]
    return [strings.bytes_of(code).decode() or None for code in cells]


def write_csv(path: Path, names: Sequence[str], rows: Sequence[Row], *, delimiter: str = ",", lists: str = "|") -> Path:
    """Writes rows as Python's own module does. `lists` separates the values of a list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(cell, lists) for cell in row] for row in rows)
    return path


def _text(cell: Any, separator: str) -> str:
    if isinstance(cell, tuple):
        return separator.join(_text(value, separator) for value in cell)
    return "" if cell is None else str(cell)


def columns_of(**kinds: str) -> list[RawColumn]:
    """Returns columns of these kinds, such as a="number" or b="string list"."""
    found = []
    for name, kind in kinds.items():
        cell, _, rest = kind.partition(" ")
        found.append(RawColumn(name, Cell(cell), bool(rest), "|" if rest else None))
    return found
