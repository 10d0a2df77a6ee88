"""A folder with arrays and their description becomes a table again; the digest follows the training rows only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_runner.data.table.convert import Sources, stored_table
from parallax_runner.data.table.stored_folder import described_columns, read_table, strings_paths, write_description
from parallax_runner.data.table.stored_table import Cell, RawColumn, StoredTable
from tests.single.data.table.rows_of import Row, columns_of, rows_of, write_csv

COLUMNS = columns_of(i="integer", é="string list", s="string", n="number")
TRAIN_ROWS: list[Row] = [(1, ("a", "日"), "x", 0.5), (None, (), None, None), (3, ("b",), "é", -2.0)]
OTHER_ROWS: list[Row] = [(7, ("new",), "x", 1.0)]


def converted(folder: Path, train: list[Row], validation: list[Row]) -> StoredTable:
    names = [column.name for column in COLUMNS]
    paths = {
        part: (str(write_csv(folder / f"{part}.csv", names, rows)),)
        for part, rows in {"train": train, "validation": validation}.items()
    }
    return stored_table(Sources(paths), COLUMNS, cache_dir=str(folder / "cache"))


def test_a_table_is_read_again(tmp_path: Path) -> None:
    table = converted(tmp_path, TRAIN_ROWS, OTHER_ROWS)
    assert table.folder is not None
    again = read_table(table.folder)
    assert rows_of(again) == TRAIN_ROWS
    assert rows_of(again, "validation") == OTHER_ROWS
    assert again.columns == tuple(COLUMNS)
    assert (again.digest, again.folder) == (table.digest, table.folder)


def test_the_digest_follows_the_training_rows(tmp_path: Path) -> None:
    first = converted(tmp_path / "1", TRAIN_ROWS, OTHER_ROWS).digest
    assert converted(tmp_path / "2", TRAIN_ROWS, OTHER_ROWS).digest == first
    assert converted(tmp_path / "3", TRAIN_ROWS, [(8, ("new",), "x", 1.0)]).digest == first
    for place, cell in enumerate((2, ("a", "b"), "y", 0.25)):
        changed = [(*TRAIN_ROWS[0][:place], cell, *TRAIN_ROWS[0][place + 1 :]), *TRAIN_ROWS[1:]]
        assert converted(tmp_path / f"column {place}", changed, OTHER_ROWS).digest != first


@pytest.mark.parametrize("name", ["table.json", "train.numbers.npy", "strings2.data.npy", "checksums.json"])
def test_a_folder_without_one_of_its_files_is_refused(name: str, tmp_path: Path) -> None:
    folder = converted(tmp_path, TRAIN_ROWS, OTHER_ROWS).folder
    assert folder is not None
    (folder / name).unlink()
    with pytest.raises(OSError, match=name):
        read_table(folder)


def test_only_string_columns_have_files_of_strings(tmp_path: Path) -> None:
    paths = strings_paths(tmp_path, COLUMNS)
    assert {name: offsets.name for name, (offsets, _) in paths.items()} == {
        "é": "strings1.offsets.npy",
        "s": "strings2.offsets.npy",
    }
    assert len({path for both in paths.values() for path in both}) == 4


def test_columns_are_described_whatever_their_names(tmp_path: Path) -> None:
    columns = [RawColumn('"a"/b\n', Cell.STRING, True, "|"), RawColumn("", Cell.NUMBER)]
    write_description(tmp_path, columns, {"train": 3}, skipped_rows=2)
    described = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert described["columns"] == described_columns(columns)
    assert [RawColumn(**{**one, "cell": Cell(one["cell"])}) for one in described["columns"]] == columns
    assert (described["rows"], described["skipped_rows"]) == ({"train": 3}, 2)
