"""Reads files that may lack columns, such as new rows without labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.csv_reader import CsvReader
from parallax_runner.data.table.raw_block import Fault, RawBlock, Reader
from parallax_runner.data.table.read_columns import Column, Lists, ReadColumn
from parallax_runner.data.table.sources import SourceFile


class LenientReader(Reader):
    """Reads some files as if they had all columns. A column that such a file lacks has only missing cells."""

    def __init__(self, reader: Reader, files: Collection[SourceFile], may_lack: Collection[str]) -> None:
        """`files` may lack the columns `may_lack`. `reader` reads all other files as they are."""
        self.has_schema, self.takes_header = reader.has_schema, reader.takes_header
        self._reader, self._files, self._may_lack = reader, frozenset(files), frozenset(may_lack)
        self._shorter = reader.without(may_lack) if isinstance(reader, CsvReader) else None

    def names(self, file: SourceFile) -> Sequence[str]:
        """See Reader."""
        return self._reader_of(file).names(file)

    def absent_of(self, parts: Mapping[str, Sequence[SourceFile]]) -> dict[str, list[str]]:
        """Returns for each part the columns that one of its files lacks, or without a schema the first rows of all of
        them. Raises DataError if a file cannot be read."""
        combined = frozenset.union if self.has_schema else frozenset.intersection
        return {
            part: sorted(combined(*(self._absent(file) for file in files))) for part, files in parts.items() if files
        }

    def _absent(self, file: SourceFile) -> frozenset[str]:
        if file not in self._files:
            return frozenset()
        return self._may_lack.difference(self.names(file))

    def blocks(self, file: SourceFile, read: Sequence[ReadColumn]) -> Iterator[tuple[RawBlock, int]]:
        """See Reader."""
        # Without a schema, a row may have a column that the first rows lack.
        absent = self._absent(file) if self.has_schema else frozenset()
        present = [column for column in read if column.name not in absent]
        for block, read_bytes in self._reader_of(file).blocks(file, present):
            yield (_FilledBlock(block, absent) if absent else block), read_bytes

    def _reader_of(self, file: SourceFile) -> Reader:
        if self._shorter is not None and file in self._files and self._shorter.fits(file):
            return self._shorter
        return self._reader


@dataclass(frozen=True)
class _FilledBlock(RawBlock):
    """A block with columns `absent`, all of whose cells are missing."""

    block: RawBlock
    absent: frozenset[str]

    @property
    def place(self) -> str:
        """See RawBlock."""
        return self.block.place

    def columns(self, read: Sequence[ReadColumn]) -> list[Column]:
        """See RawBlock."""
        present = [column for column in read if column.name not in self.absent]
        found = self.block.columns(present) if present else []
        rows = _rows_of(found[0]) if found else len(self.lines())
        columns = iter(found)
        return [_missing(column, rows) if column.name in self.absent else next(columns) for column in read]

    def lines(self) -> np.ndarray:
        """See RawBlock."""
        return self.block.lines()

    def regular_start(self, rows: int) -> int | None:
        """See RawBlock."""
        return self.block.regular_start(rows)

    def divided(self) -> tuple[RawBlock, RawBlock] | None:
        """See RawBlock."""
        halves = self.block.divided()
        if halves is None:
            return None
        first, second = halves
        return dataclasses.replace(self, block=first), dataclasses.replace(self, block=second)

    def fault_of_row(self, read: Sequence[ReadColumn]) -> Fault | None:
        """See RawBlock."""
        return self.block.fault_of_row([column for column in read if column.name not in self.absent])

    def cell(self, name: str) -> str:
        """See RawBlock."""
        return self.block.cell(name)


def _rows_of(column: Column) -> int:
    return len(column.lengths) if isinstance(column, Lists) else len(column)


def _missing(column: ReadColumn, rows: int) -> pa.Array:
    return pa.nulls(rows, column.type)
