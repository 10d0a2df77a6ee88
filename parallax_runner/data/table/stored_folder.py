"""The folder of a stored table: its files, and how they become a `StoredTable` again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parallax_runner.data.checksums import sum_of
from parallax_runner.data.table.array_file import mapped
from parallax_runner.data.table.part_writer import list_paths, matrix_path
from parallax_runner.data.table.stored_table import (
    TRAIN,
    Cell,
    RawColumn,
    StoredList,
    StoredPart,
    StoredTable,
    Strings,
    Words,
)
from parallax_runner.files.whole import write_whole

_DESCRIPTION = "table.json"
_ABSENT = "absent.json"


def strings_paths(folder: Path, columns: Sequence[RawColumn]) -> dict[str, tuple[Path, Path]]:
    """Returns the files of the offsets and the data of each string column."""
    return {
        column.name: (folder / f"strings{number}.offsets.npy", folder / f"strings{number}.data.npy")
        for number, column in enumerate(columns)
        if column.cell is Cell.STRING
    }


def write_description(
    folder: Path, columns: Sequence[RawColumn], rows: Mapping[str, int], *, skipped_rows: int
) -> None:
    """Writes what the arrays do not tell. Raises OSError if the file cannot be written."""
    described = {
        "columns": described_columns(columns),
        "rows": dict(rows),
        "skipped_rows": skipped_rows,
    }
    write_whole(folder / _DESCRIPTION, json.dumps(described, indent=1) + "\n")


def write_absent(folder: Path, absent: Mapping[str, Sequence[str]]) -> None:
    """Writes which columns a file of a part lacks. Raises OSError if the file cannot be written."""
    write_whole(folder / _ABSENT, json.dumps({part: list(names) for part, names in absent.items()}) + "\n")


def described_columns(columns: Sequence[RawColumn]) -> list[dict[str, Any]]:
    """Returns columns as values of JSON."""
    return [{**dataclasses.asdict(one), "cell": one.cell.value} for one in columns]


def _column(described: Mapping[str, Any]) -> RawColumn:
    words = described["words"]
    return RawColumn(
        **{**described, "cell": Cell(described["cell"]), "words": None if words is None else Words(**words)}
    )


def read_table(folder: Path) -> StoredTable:
    """Returns the table in a folder, mapped into memory. Raises OSError or ValueError if it is damaged."""
    described = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
    columns = tuple(_column(one) for one in described["columns"])
    absent = json.loads((folder / _ABSENT).read_text(encoding="utf-8"))
    strings = {
        name: Strings(mapped(offsets), mapped(data)) for name, (offsets, data) in strings_paths(folder, columns).items()
    }
    return StoredTable(
        columns=columns,
        parts={part: _read_part(folder, part, columns, rows) for part, rows in described["rows"].items()},
        strings=strings,
        digest=_digest(folder, columns),
        skipped_rows=described["skipped_rows"],
        absent={part: tuple(names) for part, names in absent.items()},
        folder=folder,
    )


def _read_part(folder: Path, part: str, columns: Sequence[RawColumn], rows: int) -> StoredPart:
    lists = {}
    for number, column in enumerate(columns):
        if column.is_list:
            offsets, values = list_paths(folder, part, number)
            lists[column.name] = StoredList(mapped(offsets), mapped(values))
    return StoredPart(
        rows=rows,
        numbers=mapped(matrix_path(folder, part, Cell.NUMBER)),
        integers=mapped(matrix_path(folder, part, Cell.INTEGER)),
        codes=mapped(matrix_path(folder, part, Cell.STRING)),
        lists=lists,
    )


def _digest(folder: Path, columns: Sequence[RawColumn]) -> str:
    """Returns a digest of the arrays for training and of the strings, from their checksums."""
    paths = [matrix_path(folder, TRAIN, cell) for cell in Cell]
    for number, column in enumerate(columns):
        if column.is_list:
            paths += list_paths(folder, TRAIN, number)
    for both in strings_paths(folder, columns).values():
        paths += both
    sums = [described_columns(columns), *(sum_of(folder, path.name) for path in paths)]
    return hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:32]
