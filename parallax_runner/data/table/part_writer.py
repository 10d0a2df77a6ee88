"""Writes the rows of one part of a table, with the codes of the blocks' own dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parallax_runner.data.table.array_file import ArrayFile
from parallax_runner.data.table.encoded_block import DTYPE, EncodedBlock, EncodedList
from parallax_runner.data.table.local_codes import LocalCodes
from parallax_runner.data.table.origins import OriginWriter
from parallax_runner.data.table.stored_table import Cell, RawColumn

MATRIX_NAMES = {Cell.NUMBER: "numbers", Cell.INTEGER: "integers", Cell.STRING: "codes"}


def matrix_path(folder: Path, part: str, cell: Cell) -> Path:
    """Returns the file of a part's matrix."""
    return folder / f"{part}.{MATRIX_NAMES[cell]}.npy"


def list_paths(folder: Path, part: str, number: int) -> tuple[Path, Path]:
    """Returns the files of the offsets and the values of the list column with this number among all columns."""
    return folder / f"{part}.list{number}.offsets.npy", folder / f"{part}.list{number}.values.npy"


class PartWriter:
    """Appends blocks of rows to the files of one part."""

    def __init__(self, folder: Path, scratch: Path, part: str, columns: Sequence[RawColumn]) -> None:
        single = [column for column in columns if not column.is_list]
        names = {cell: tuple(one.name for one in single if one.cell is cell) for cell in Cell}
        self.rows = 0
        self._matrices = {
            cell: ArrayFile(matrix_path(folder, part, cell), DTYPE[cell], (len(names[cell]),)) for cell in Cell
        }
        self._codes = LocalCodes(scratch / f"{part}.codes", names[Cell.STRING], self._matrices[Cell.STRING])
        self._lists = {
            column.name: _ListFiles(folder, scratch, part, number, column)
            for number, column in enumerate(columns)
            if column.is_list
        }
        self._origins = OriginWriter(folder, part)

    def append(self, rows: EncodedBlock, *, block: int, file: int, first_line: int, lines: np.ndarray | None) -> None:
        """Appends the rows of the block with this number. They are on `lines` of the file with the number `file`, or on
        consecutive lines from `first_line` on."""
        if rows.rows == 0:
            return
        self._origins.append(self.rows, file, first_line, lines)
        for cell in (Cell.NUMBER, Cell.INTEGER):
            self._matrices[cell].append(rows.matrices[cell])
        self._codes.append(rows.matrices[Cell.STRING], block)
        for name, lists in rows.lists.items():
            self._lists[name].append(lists, block)
        self.rows += rows.rows

    @property
    def written_bytes(self) -> int:
        """The size of the matrices and lists until now, of which the codes are still to be written."""
        matrices = sum(matrix.size_bytes for matrix in self._matrices.values())
        lists = sum(one.written_bytes for one in self._lists.values())
        return matrices + self._codes.final_bytes + lists

    @property
    def coded(self) -> list[LocalCodes]:
        """All codes, which `StringMerge.finish` replaces."""
        return [self._codes, *(one.codes for one in self._lists.values() if one.codes is not None)]

    def close(self) -> None:
        """Closes all files."""
        for matrix in self._matrices.values():
            matrix.close()
        self._codes.close()
        for lists in self._lists.values():
            lists.close()
        self._origins.close()


class _ListFiles:
    """The files of a list column."""

    def __init__(self, folder: Path, scratch: Path, part: str, number: int, column: RawColumn) -> None:
        offsets, values = list_paths(folder, part, number)
        self._offsets = ArrayFile(offsets, np.dtype(np.int64))
        self._values = ArrayFile(values, DTYPE[column.cell])
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._stop = 0
        self.codes: LocalCodes | None = None
        if column.cell is Cell.STRING:
            self.codes = LocalCodes(scratch / f"{part}.list{number}.codes", (column.name,), self._values)

    def append(self, lists: EncodedList, block: int) -> None:
        self._offsets.append(self._stop + np.cumsum(lists.lengths))
        self._stop += len(lists.values)
        if self.codes is None:
            self._values.append(lists.values)
        else:
            self.codes.append(lists.values[:, np.newaxis], block)

    @property
    def written_bytes(self) -> int:
        codes_bytes = 0 if self.codes is None else self.codes.final_bytes
        return self._offsets.size_bytes + self._values.size_bytes + codes_bytes

    def close(self) -> None:
        self._offsets.close()
        self._values.close()
        if self.codes is not None:
            self.codes.close()
