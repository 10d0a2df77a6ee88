"""Reads CSV and TSV with pyarrow's parser."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from parallax_runner.data.table.csv_records import end_of_records, record_ends
from parallax_runner.data.table.raw_block import Fault, RawBlock, Reader
from parallax_runner.data.table.read_columns import MISSING_TEXTS, Column, ReadColumn, as_read
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.text_block import TextBlock
from parallax_runner.data.table.text_stream import TextPiece, pieces, records
from parallax_runner.errors import DataError

PARSED_BYTES = 2**20  # of a block at a time: more bytes miss the cache of the processor
_HEADER_BYTES = 2**16
# pyarrow compares whole cells, also if they are blank.
_MISSING_CELLS = (*MISSING_TEXTS, *(" " * number for number in range(1, 33)))


@dataclass(frozen=True)
class CsvLayout:
    """How cells are separated, and the names of the columns in their order."""

    delimiter: str
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CsvBlock(TextBlock):
    """Records of a CSV file."""

    layout: CsvLayout

    def columns(self, read: Sequence[ReadColumn]) -> list[Column]:
        """See RawBlock."""
        has_quotes = b'"' in self.piece.data
        size_bytes = len(self.piece.data) + 1
        if has_quotes or size_bytes <= PARSED_BYTES:
            return self._columns(read, size_bytes, has_quotes=has_quotes)
        try:
            return self._columns(read, PARSED_BYTES, has_quotes=has_quotes)
        except pa.ArrowInvalid:  # maybe only because a record has more bytes
            return self._columns(read, size_bytes, has_quotes=has_quotes)

    def _columns(self, read: Sequence[ReadColumn], parsed_bytes: int, *, has_quotes: bool) -> list[Column]:
        """Returns the columns. pyarrow parses `parsed_bytes` at a time. Without quotation marks, it need not look for
        them."""
        types = {self._key(column.name): pa.string() if column.is_list else column.type for column in read}
        table = pa_csv.read_csv(
            pa.BufferReader(self.piece.data),
            read_options=pa_csv.ReadOptions(
                use_threads=False,
                block_size=parsed_bytes,
                column_names=[str(number) for number in range(len(self.layout.names))],
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=self.layout.delimiter,
                quote_char='"' if has_quotes else False,
                newlines_in_values=has_quotes,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=_MISSING_CELLS,
                strings_can_be_null=False,
                check_utf8=not self.piece.data.isascii(),  # cell by cell, this takes a tenth of the conversion
            ),
        )
        arrays = [_only_chunk(table.column(self._key(column.name))) for column in read]
        return [as_read(array, column) if column.is_list else array for array, column in zip(arrays, read, strict=True)]

    def _key(self, name: str) -> str:
        # Names in a file may be doubled, but positions are not.
        return str(self.layout.names.index(name))

    def _records(self) -> tuple[np.ndarray, np.ndarray]:
        return records(self.piece.data, record_ends(self.piece.data, self.layout.delimiter))

    def fault_of_row(self, read: Sequence[ReadColumn]) -> Fault | None:
        """See RawBlock."""
        count = len(self._cells())
        expected = len(self.layout.names)
        return None if count == expected else Fault(f"{expected} columns, got {count}")

    def cell(self, name: str) -> str:
        """See RawBlock."""
        return self._cells()[self.layout.names.index(name)]

    def _cells(self) -> list[str]:
        text = self.piece.data.decode("utf-8", errors="backslashreplace")
        return _parsed(text, self.layout.delimiter)


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _parsed(record: str, delimiter: str) -> list[str]:
    lines = io.StringIO(record.lstrip("\r\n"), newline="")
    try:
        return next(csv.reader(lines, delimiter=delimiter), [])
    except csv.Error:  # a cell is too large for Python's module, which only serves messages
        return record.strip("\r\n").split(delimiter)


class CsvReader(Reader):
    """Reads CSV with this delimiter. `header` has the names of the columns, or is None if each file begins with
    them."""

    takes_header = True

    def __init__(self, delimiter: str, header: tuple[str, ...] | None, block_bytes: int | None = None) -> None:
        self._delimiter = delimiter
        self._header = header
        self._block_bytes = block_bytes

    def names(self, file: SourceFile) -> Sequence[str]:
        """See Reader."""
        if self._header is not None:
            return self._header
        first = next(self._pieces(file, _HEADER_BYTES))
        return self._names_in(file, first)

    def without(self, columns: Collection[str]) -> CsvReader | None:
        """Returns a reader of files that lack all of these columns of the header, or None if there is no header or it
        has none of them."""
        names = tuple(name for name in self._header or () if name not in columns)
        if self._header is None or names == self._header:
            return None
        return CsvReader(self._delimiter, names, self._block_bytes)

    def fits(self, file: SourceFile) -> bool:
        """Returns whether the first row of a file has as many cells as the header."""
        first = next(self._pieces(file, _HEADER_BYTES))
        return len(self._names_in(file, first)) == len(self._header or ())

    def blocks(self, file: SourceFile, read: Sequence[ReadColumn]) -> Iterator[tuple[RawBlock, int]]:
        """See Reader."""
        names = self._header
        for piece in self._pieces(file, self._block_bytes):
            rows = piece
            if names is None:
                names = tuple(self._names_in(file, piece))
                rows = self._after_header(piece)
            if not rows.is_blank:
                yield CsvBlock(layout=CsvLayout(self._delimiter, names), piece=rows), piece.read_bytes

    def _pieces(self, file: SourceFile, block_bytes: int | None) -> Iterator[TextPiece]:
        return pieces(file, lambda start, more: end_of_records(start, more, self._delimiter), block_bytes)

    def _names_in(self, file: SourceFile, piece: TextPiece) -> list[str]:
        starts, _ = self._records(piece)
        if len(starts) == 0:
            raise DataError(f"{file.path}: expected the names of the columns in the first line, but it is empty.")
        end = starts[1] if len(starts) > 1 else len(piece.data)
        try:
            return _parsed(piece.data[:end].decode("utf-8"), self._delimiter)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file.path}: line 1: expected UTF-8 text, but the names of the columns have the byte "
                f"0x{error.object[error.start]:02x}. Convert this file."
            ) from error

    def _after_header(self, piece: TextPiece) -> TextPiece:
        starts, lines = self._records(piece)
        if len(starts) < 2:
            return piece.from_record(len(piece.data), piece.line_count)
        return piece.from_record(int(starts[1]), int(lines[1]))

    def _records(self, piece: TextPiece) -> tuple[np.ndarray, np.ndarray]:
        return records(piece.data, record_ends(piece.data, self._delimiter))
