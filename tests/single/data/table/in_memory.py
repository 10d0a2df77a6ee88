"""A StoredTable made of Python lists, as the conversion makes it of files."""

from collections.abc import Mapping, Sequence

import numpy as np

from parallax_runner.data.table.stored_table import (
    MISSING_INTEGER,
    Cell,
    RawColumn,
    StoredList,
    StoredPart,
    StoredTable,
    Strings,
)

Rows = Mapping[str, Sequence]
DTYPES = {Cell.NUMBER: np.float32, Cell.INTEGER: np.int64, Cell.STRING: np.int32}


def stored(columns: Sequence[RawColumn], parts: Mapping[str, Rows], digest: str = "1") -> StoredTable:
    """`parts` has the values of each column: None is a blank cell, and a list column has lists."""
    words = {one.name: _words(one, parts) for one in columns if one.cell is Cell.STRING}
    made = {name: _part(columns, rows, words) for name, rows in parts.items()}
    return StoredTable(tuple(columns), made, {name: strings(found) for name, found in words.items()}, digest)


def strings(words: Sequence[str]) -> Strings:
    encoded = [word.encode() for word in words]
    return Strings(np.cumsum([0, *map(len, encoded)]), np.frombuffer(b"".join(encoded), dtype=np.uint8))


def _words(column: RawColumn, parts: Mapping[str, Rows]) -> list[str]:
    values = [value for rows in parts.values() for value in _flat(column, rows)]
    return ["", *dict.fromkeys(value for value in values if value)]


def _flat(column: RawColumn, rows: Rows) -> list:
    values = rows[column.name]
    return [value for cell in values for value in cell] if column.is_list else list(values)


def _part(columns: Sequence[RawColumn], rows: Rows, words: Mapping[str, list[str]]) -> StoredPart:
    count = len(next(iter(rows.values())))
    matrices = {}
    for cell, dtype in DTYPES.items():
        plain = [_stored(one, rows, words) for one in columns if one.cell is cell and not one.is_list]
        matrices[cell] = np.stack(plain, axis=1) if plain else np.zeros((count, 0), dtype)
    lists = {
        one.name: StoredList(np.cumsum([0, *map(len, rows[one.name])]), _stored(one, rows, words))
        for one in columns
        if one.is_list
    }
    return StoredPart(count, matrices[Cell.NUMBER], matrices[Cell.INTEGER], matrices[Cell.STRING], lists)


def _stored(column: RawColumn, rows: Rows, words: Mapping[str, list[str]]) -> np.ndarray:
    values = _flat(column, rows)
    if column.cell is Cell.STRING:
        codes = {word: code for code, word in enumerate(words[column.name])}
        return np.array([codes[value or ""] for value in values], np.int32)
    missing = np.nan if column.cell is Cell.NUMBER else MISSING_INTEGER
    return np.array([missing if value is None else value for value in values], DTYPES[column.cell])
