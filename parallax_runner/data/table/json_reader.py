"""Reads JSON lines with pyarrow's parser: each line is an object."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from parallax_runner.data.table.raw_block import Fault, RawBlock, Reader
from parallax_runner.data.table.read_columns import BadBlock, Column, ReadColumn, as_read
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.stored_table import Cell
from parallax_runner.data.table.text_block import TextBlock
from parallax_runner.data.table.text_stream import pieces, records

SAMPLED_ROWS = 100
_SAMPLE_BYTES = 2**16
_BLANKS = np.frombuffer(b" \t\r\n", dtype=np.uint8)  # what JSON allows between values


@dataclass(frozen=True, kw_only=True)
class JsonBlock(TextBlock):
    """Lines of a file.

    The parser has to know the type of each column, which follows from the block's first rows. If a column of ids has
    numbers and strings, the parser refuses the block. Then parts of it are read, down to rows of one type.
    """

    def columns(self, read: Sequence[ReadColumn]) -> list[Column]:
        """See RawBlock."""
        rows = _sample(self.piece.data)
        schema = pa.schema([(one.name, _type(one, [row.get(one.name) for row in rows])) for one in read])
        table = pa_json.read_json(
            pa.BufferReader(self.piece.data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(self.piece.data) + 1),
            parse_options=pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        self._check_one_row_per_line(table.num_rows)
        return [as_read(table.column(column.name).combine_chunks(), column) for column in read]

    def _check_one_row_per_line(self, rows: int) -> None:
        """Raises BadBlock if lines have several objects, or objects several lines, which the parser accepts."""
        if rows != self.piece.line_count and rows != len(self.lines()):
            raise BadBlock(f"{rows} objects")

    def fault_of_row(self, read: Sequence[ReadColumn]) -> Fault | None:
        """See RawBlock."""
        try:
            row = json.loads(self.piece.data)
        except UnicodeDecodeError:
            return Fault("text in UTF-8")
        except (ValueError, RecursionError) as error:
            return Fault(f"an object of JSON: {error}")
        return None if isinstance(row, dict) else Fault("an object of JSON")

    def cell(self, name: str) -> str:
        """See RawBlock."""
        return json.dumps(json.loads(self.piece.data).get(name), ensure_ascii=False)

    def _records(self) -> tuple[np.ndarray, np.ndarray]:
        starts, lines = records(self.piece.data, _line_ends(self.piece.data))
        if len(starts) == 0:
            return starts, lines
        is_text = np.isin(np.frombuffer(self.piece.data, dtype=np.uint8), _BLANKS, invert=True)
        has_text = np.logical_or.reduceat(is_text, starts)
        return starts[has_text], lines[has_text]


class JsonReader(Reader):
    """Reads JSON lines."""

    has_schema = False

    def names(self, file: SourceFile) -> Sequence[str]:
        """See Reader."""
        first = next(pieces(file, _end_of_lines, _SAMPLE_BYTES))
        return list(dict.fromkeys(name for row in _sample(first.data) for name in row))

    def blocks(self, file: SourceFile, read: Sequence[ReadColumn]) -> Iterator[tuple[RawBlock, int]]:
        """See Reader."""
        for piece in pieces(file, _end_of_lines):
            if not piece.is_blank:
                yield JsonBlock(piece=piece), piece.read_bytes


def _end_of_lines(start: bytes, more: bytes) -> int:
    return more.rfind(b"\n") + 1


def _line_ends(data: bytes) -> np.ndarray:
    return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1


def _sample(data: bytes) -> list[dict[str, Any]]:
    """Returns the first rows that are objects."""
    found = []
    first_end = data.find(b"\n") + 1
    start = data[: max(first_end, _SAMPLE_BYTES)]
    for line in start.split(b"\n", SAMPLED_ROWS)[:SAMPLED_ROWS]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def _type(column: ReadColumn, cells: list[Any]) -> pa.DataType:
    """Returns the type that the parser has to expect, which follows from the first cells."""
    some = _first(cells)
    if not column.has_lists:
        return _type_of_values(column, some)
    if isinstance(some, str) and column.separator is not None:
        return pa.string()
    lists = [cell for cell in cells if isinstance(cell, list)]
    values = itertools.chain.from_iterable(lists)
    return pa.list_(_type_of_values(column, _first(values)))


def _first(values: Iterable[Any]) -> Any:
    """Returns the first value that is not missing, or None."""
    return next((value for value in values if value is not None), None)


def _type_of_values(column: ReadColumn, some: Any) -> pa.DataType:
    if isinstance(some, bool):
        return pa.bool_()
    if isinstance(some, str):
        return pa.string()
    if isinstance(some, int) and column.cell is Cell.STRING:
        return pa.int64()
    if isinstance(some, float) and column.cell is not Cell.NUMBER:
        return pa.float64()
    return column.type
