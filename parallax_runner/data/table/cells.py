"""Reads the cells of rows of a stored table, for all columns at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallax_runner.data.mapped_file import MappedFile
from parallax_runner.data.table.stored_table import Cell, StoredList, StoredPart, StoredTable

CHUNK_ROWS = 2**16  # rows that a pass over a table reads at once; they fit in a processor's cache


@dataclass(frozen=True)
class Cells:
    """The cells of a column in some rows: float32 numbers, int64 integers, or int32 codes of strings.

    `lengths`, int64 [rows], is the number of values in each row of a list column, and None for any other column.
    """

    values: np.ndarray
    lengths: np.ndarray | None = None


class PartReader:
    """Reads rows of one part of a table."""

    def __init__(self, table: StoredTable, part: StoredPart) -> None:
        self.rows = part.rows
        self._part = part
        self._places = {one.name: table.place_of(one.name) for one in table.columns if not one.is_list}
        self._files = [MappedFile.of(path) for path in sorted(_files_of(part))]

    def take(self, rows: np.ndarray) -> dict[str, Cells]:
        """Returns the cells of these rows, int64 [count], by the names of the columns. Raises DataError if a file of
        the table has been deleted or truncated."""
        for file in self._files:
            file.check()
        matrices = {cell: matrix[rows] for cell, matrix in _matrices(self._part).items()}
        lists = {name: _rows_of(one, rows) for name, one in self._part.lists.items()}
        return self._plain(matrices) | lists

    def chunks(self) -> Iterator[tuple[int, dict[str, Cells]]]:
        """Yields the first row of each chunk, and the cells of its rows."""
        for start in range(0, self.rows, CHUNK_ROWS):
            end = min(start + CHUNK_ROWS, self.rows)
            matrices = {cell: matrix[start:end] for cell, matrix in _matrices(self._part).items()}
            lists = {name: _range_of(one, start, end) for name, one in self._part.lists.items()}
            yield start, self._plain(matrices) | lists

    def _plain(self, matrices: Mapping[Cell, np.ndarray]) -> dict[str, Cells]:
        return {name: Cells(matrices[cell][:, number]) for name, (cell, number) in self._places.items()}


def cells_of_rows(cells: Cells, is_wanted: np.ndarray | None) -> Cells:
    """Returns the cells of some rows of a chunk, bool [rows]; None: all."""
    if is_wanted is None:
        return cells
    if cells.lengths is None:
        return Cells(cells.values[is_wanted])
    return Cells(cells.values[np.repeat(is_wanted, cells.lengths)], cells.lengths[is_wanted])


def _matrices(part: StoredPart) -> dict[Cell, np.ndarray]:
    return {Cell.NUMBER: part.numbers, Cell.INTEGER: part.integers, Cell.STRING: part.codes}


def _rows_of(stored: StoredList, rows: np.ndarray) -> Cells:
    starts = stored.offsets[rows]
    lengths = stored.offsets[rows + 1] - starts
    before = np.cumsum(lengths) - lengths  # values of earlier rows in the result
    places = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    return Cells(stored.values[places], lengths)


def _range_of(stored: StoredList, start: int, end: int) -> Cells:
    offsets = stored.offsets[start : end + 1]
    return Cells(stored.values[offsets[0] : offsets[-1]], np.diff(offsets))


def arrays_of(part: StoredPart) -> dict[str, np.ndarray]:
    """Returns all arrays of a part by name."""
    arrays = {cell.value: matrix for cell, matrix in _matrices(part).items()}
    for name, one in part.lists.items():
        arrays |= {f"list {name} offsets": one.offsets, f"list {name} values": one.values}
    return arrays


def _files_of(part: StoredPart) -> set[Path]:
    mapped = [array for array in arrays_of(part).values() if isinstance(array, np.memmap)]
    return {Path(array.filename) for array in mapped if array.filename}
