"""Rows of mapped files: in any order, in chunks, and never of a file that was truncated."""

import dataclasses

import numpy as np
import pytest

from parallax_runner.data.table import cells, strings_of_codes
from parallax_runner.data.table.cells import Cells, PartReader
from parallax_runner.data.table.columns.ids import rows_of
from parallax_runner.data.table.stored_table import Cell, RawColumn
from parallax_runner.errors import DataError
from tests.single.data.table.in_memory import stored, strings

COLUMNS = [
    RawColumn("a", Cell.NUMBER),
    RawColumn("list", Cell.INTEGER, is_list=True),
    RawColumn("b", Cell.INTEGER),
    RawColumn("c", Cell.NUMBER),
]
ROWS = {
    "a": [0.0, 1.0, 2.0, 3.0, 4.0],
    "list": [[], [10, 11], [20], [], [40, 41, 42]],
    "b": [5, 6, 7, 8, 9],
    "c": [0.5, 1.5, 2.5, 3.5, 4.5],
}


def reader():
    table = stored(COLUMNS, {"train": ROWS})
    return PartReader(table, table.parts["train"])


def lists_of(found: Cells) -> list[list[int]]:
    ends = np.cumsum(found.lengths)
    return [part.tolist() for part in np.split(found.values, ends[:-1])]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [4, 1, 1, 0], [3], []])
def test_rows_are_read_in_any_order(rows):
    found = reader().take(np.array(rows, dtype=np.int64))
    for name in ("a", "b", "c"):
        assert found[name].values.tolist() == [ROWS[name][row] for row in rows]
    assert lists_of(found["list"])[: len(rows)] == [ROWS["list"][row] for row in rows]


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_chunks_have_all_rows(monkeypatch, chunk):
    monkeypatch.setattr(cells, "CHUNK_ROWS", chunk)
    starts, found = zip(*reader().chunks(), strict=True)
    assert starts == tuple(range(0, 5, chunk))
    for name in ("a", "b", "c"):
        assert [value for part in found for value in part[name].values.tolist()] == ROWS[name]
    assert [one for part in found for one in lists_of(part["list"])] == ROWS["list"]


def test_a_file_that_was_truncated_is_no_crash(tmp_path):
    table = stored(COLUMNS, {"train": ROWS})
    np.save(tmp_path / "numbers.npy", table.parts["train"].numbers)
    mapped = np.load(tmp_path / "numbers.npy", mmap_mode="r")
    found = PartReader(table, dataclasses.replace(table.parts["train"], numbers=mapped))
    assert found.take(np.array([3]))["c"].values.tolist() == [3.5]
    (tmp_path / "numbers.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"numbers.npy: this file was truncated during training"):
        found.take(np.array([3]))


def test_a_value_of_a_list_is_in_its_row():
    found = Cells(np.arange(6), np.array([0, 2, 1, 0, 3]))
    assert rows_of(np.arange(6), found).tolist() == [1, 1, 2, 4, 4, 4]
    assert rows_of(np.array([3]), Cells(np.arange(6))).tolist() == [3]


def test_hashes_of_many_strings_are_computed_in_parts(monkeypatch):
    import tensorflow as tf

    words = ["", *(f"word {number}" for number in range(10)), "ü\0ü"]
    monkeypatch.setattr(strings_of_codes, "CHUNK_STRINGS", 4)
    found = strings_of_codes.hashed(strings(words), 1000)
    assert found.tolist() == tf.strings.to_hash_bucket_fast(words, 1000).numpy().tolist()
