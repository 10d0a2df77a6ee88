"""Writes the rows of one part of a table, with the codes of the blocks' own dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from parallax_runner.data.table.array_file import ArrayFile
from parallax_runner.data.table.encoded_block import DTYPE, EncodedBlock, EncodedList
from parallax_runner.data.table.origins import OriginWriter
from parallax_runner.data.table.stored_table import Cell, RawColumn

MATRIX_NAMES = {Cell.NUMBER: "numbers", Cell.INTEGER: "integers", Cell.STRING: "codes"}


def matrix_path(folder: Path, part: str, cell: Cell) -> Path:
    """Returns the file of a part's matrix."""
    return folder / f"{part}.{MATRIX_NAMES[cell]}.npy"


def list_paths(folder: Path, part: str, number: int) -> tuple[Path, Path]:
    """Returns the files of the offsets and the values of the list column with this number among all columns."""
    return folder / f"{part}.list{number}.offsets.npy", folder / f"{part}.list{number}.values.npy"


@dataclass(frozen=True)
class Span:
    """Rows of an array that have the codes of one block: rows `start` to `stop`."""

    block: int
    start: int
    stop: int


@dataclass
class CodedFile:
    """A file with codes of the blocks' own dictionaries. `names` are the string columns that its columns have."""

    path: Path
    names: tuple[str, ...]
    spans: list[Span] = field(default_factory=list)


class PartWriter:
    """Appends blocks of rows to the files of one part."""

    def __init__(self, folder: Path, part: str, columns: Sequence[RawColumn]) -> None:
        single = [column for column in columns if not column.is_list]
        names = {cell: tuple(one.name for one in single if one.cell is cell) for cell in Cell}
        self.rows = 0
        self._matrices = {
            cell: ArrayFile(matrix_path(folder, part, cell), DTYPE[cell], (len(names[cell]),)) for cell in Cell
        }
        self._codes = CodedFile(self._matrices[Cell.STRING].path, names[Cell.STRING])
        self._lists = {
            column.name: _ListFiles(folder, part, number, column)
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
        for cell, matrix in rows.matrices.items():
            self._matrices[cell].append(matrix)
        self._codes.spans.append(Span(block, self.rows, self.rows + rows.rows))
        for name, lists in rows.lists.items():
            self._lists[name].append(lists, block)
        self.rows += rows.rows

    @property
    def written_bytes(self) -> int:
        """The size of the matrices and lists until now."""
        files = [*self._matrices.values(), *(file for one in self._lists.values() for file in one.files)]
        return sum(file.size_bytes for file in files)

    def close(self) -> list[CodedFile]:
        """Closes all files. Returns those with codes."""
        for matrix in self._matrices.values():
            matrix.close()
        for lists in self._lists.values():
            lists.close()
        self._origins.close()
        return [self._codes, *(lists.coded for lists in self._lists.values() if lists.coded.names)]


class _ListFiles:
    """The files of a list column."""

    def __init__(self, folder: Path, part: str, number: int, column: RawColumn) -> None:
        offsets, values = list_paths(folder, part, number)
        self._offsets = ArrayFile(offsets, np.dtype(np.int64))
        self._values = ArrayFile(values, DTYPE[column.cell])
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self.coded = CodedFile(values, (column.name,) if column.cell is Cell.STRING else ())
        self.files = (self._offsets, self._values)

    def append(self, lists: EncodedList, block: int) -> None:
        start = self._values.rows
        self._offsets.append(start + np.cumsum(lists.lengths))
        self._values.append(lists.values)
        self.coded.spans.append(Span(block, start, self._values.rows))

    def close(self) -> None:
        for file in self.files:
            file.close()
