"""Parts the good rows of a block from the bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.raw_block import Fault, RawBlock
from parallax_runner.data.table.read_columns import BadBlock, Column, Lists, ReadColumn, check_finite

_BAD = (BadBlock, pa.ArrowInvalid, pa.ArrowNotImplementedError)


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read."""

    place: str  # "line" or "row"
    number: int
    fault: Fault


@dataclass(frozen=True)
class GoodRows:
    """The columns of the good rows, the line of each of them (int64 [rows]), and the bad rows. `lines` is None if the
    rows are on consecutive lines from `first_line` on."""

    columns: list[Column]
    rows: int
    first_line: int
    lines: np.ndarray | None = None
    bad: list[BadRow] = field(default_factory=list)


def good_rows(block: RawBlock, read: Sequence[ReadColumn], *, most_bad: int) -> GoodRows:
    """Reads a block. Stops at `most_bad` bad rows, so that a wrong column costs little.

    If pyarrow refuses the block, halves of it are read, and so on, until each bad row is alone. So the same parser
    decides about all rows, and k bad rows of n cost about as much as reading n × log2(k) rows.
    """
    columns = _tried(block, read)
    if columns is not None:
        rows = _rows_of(columns[0])
        start = block.regular_start(rows)
        return GoodRows(columns, rows, start or 0, None if start is not None else block.lines())
    bad: list[BadRow] = []
    good: list[tuple[list[Column], np.ndarray]] = []
    waiting = [block]
    while waiting and len(bad) < most_bad:
        part = waiting.pop()
        columns = None if part is block else _tried(part, read)
        if columns is not None:
            good.append((columns, part.lines()))
            continue
        halves = part.divided()
        if halves is None:
            bad.append(_bad_row(part, read))
        else:
            waiting += reversed(halves)
    return _joined(good, bad, read)


def _tried(block: RawBlock, read: Sequence[ReadColumn]) -> list[Column] | None:
    try:
        columns = _columns(block, read)
        check_finite(columns, read)
    except _BAD:
        return None
    return columns


def _columns(block: RawBlock, read: Sequence[ReadColumn]) -> list[Column]:
    """Reads columns. The last one divides the rows, and may also be a column of the table, with another type."""
    *others, last = read
    is_read_twice = any(column.name == last.name for column in others)
    return block.columns(others) + block.columns([last]) if is_read_twice else block.columns(read)


def _bad_row(block: RawBlock, read: Sequence[ReadColumn]) -> BadRow:
    line = int(block.lines()[0])
    fault = block.fault_of_row(read) or _bad_cell(block, read)
    return BadRow(block.place, line, fault)


def _bad_cell(block: RawBlock, read: Sequence[ReadColumn]) -> Fault:
    for column in read:
        if _tried(block, [column]) is None:
            return Fault(column.expected, column.name, block.cell(column.name))
    return Fault("a row that can be parsed")


def _rows_of(column: Column) -> int:
    return len(column.lengths) if isinstance(column, Lists) else len(column)


def _joined(good: list[tuple[list[Column], np.ndarray]], bad: list[BadRow], read: Sequence[ReadColumn]) -> GoodRows:
    if not good:
        nothing = [_nothing(column) for column in read]
        return GoodRows(nothing, 0, 0, np.empty(0, dtype=np.int64), bad)
    columns = [_concatenated(pieces) for pieces in zip(*(columns for columns, _ in good), strict=True)]
    lines = np.concatenate([lines for _, lines in good])
    return GoodRows(columns, len(lines), 0, lines, bad)


def _nothing(column: ReadColumn) -> Column:
    values = pa.array([], type=column.type)
    return Lists(np.empty(0, dtype=np.int64), values) if column.is_list else values


def _concatenated(pieces: Sequence[Column]) -> Column:
    lists = [piece for piece in pieces if isinstance(piece, Lists)]
    if lists:
        lengths = np.concatenate([piece.lengths for piece in lists])
        return Lists(lengths, pa.concat_arrays([piece.values for piece in lists]))
    return pa.concat_arrays(list(pieces))
