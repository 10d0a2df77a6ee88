"""Each format gives the same table."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallax_runner.data.table import text_stream
from parallax_runner.data.table.convert import Sources, stored_table
from parallax_runner.data.table.stored_table import Cell, RawColumn, StoredTable
from parallax_runner.errors import ConfigError, DataError
from tests.single.data.table.rows_of import Row, columns_of, rows_of
from tests.single.data.table.written import written

FORMATS = ("csv", "tsv", "jsonl", "parquet", "arrow", "arrows", "tfrecord")
COMPRESSED = ("csv.gz", "tsv.zst", "jsonl.gz", "jsonl.zst", "arrows.zst", "tfrecord.gz", "tfrecord.zst")
COLUMNS = columns_of(id="integer", n="number", s="string", words="string list", ids="integer list", xs="number list")
ROWS: list[Row] = [
    (1, 0.5, "x", ("u", "v"), (1, 2, 3), (0.5,)),
    (None, None, None, (), (), ()),
    (-3, 2.0, 'a "quoted"\ntext', ("v",), (9,), (1.0, -2.5)),
    (2**53 + 1, -1.25, "ü 漢字", ("w", "u", "w"), (), (3.0,)),
]


def load(path: Path, cache: Path, columns: list[RawColumn] = COLUMNS, **changed: Any) -> StoredTable:
    return stored_table(Sources({"train": (str(path),)}, **changed), columns, cache_dir=str(cache))


@pytest.mark.parametrize("name", [*FORMATS, *COMPRESSED])
def test_a_format_gives_the_same_table(name: str, tmp_path: Path) -> None:
    table = load(written(tmp_path / f"t.{name}", COLUMNS, ROWS), tmp_path / "cache")
    assert rows_of(table) == ROWS


def floats() -> st.SearchStrategy[float]:
    return st.floats(width=32, allow_nan=False, allow_infinity=False)


def texts() -> st.SearchStrategy[str]:
    # A carriage return ends a line of CSV, and Python's module writes a zero byte, which pyarrow keeps.
    characters = st.characters(exclude_categories=["Cs"], exclude_characters="\r|")
    return st.text(characters, min_size=1, max_size=5) | st.sampled_from(
        ['"', '""', "\n", ",", "\t", 'a"b', "NULL", "nan"]
    )


def cells() -> st.SearchStrategy[Row]:
    integers = st.integers(-(2**63) + 1, 2**63 - 1)
    return st.tuples(
        st.none() | integers,
        st.none() | floats(),
        st.none() | texts(),
        st.lists(texts(), max_size=3).map(tuple),
        st.lists(integers, max_size=3).map(tuple),
        st.lists(floats(), max_size=3).map(tuple),
    )


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(cells(), min_size=1, max_size=12), block_bytes=st.sampled_from([1, 40, 2**20]))
def test_each_format_gives_the_same_random_table(
    rows: list[Row], block_bytes: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("random")
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", block_bytes)
    for name in FORMATS:
        table = load(written(folder / f"t.{name}", COLUMNS, rows), folder / "cache")
        assert rows_of(table) == rows, name


def test_ids_of_any_type_become_strings(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"s": 12}\n{"s": 7}\n{}\n')
    pq.write_table(pa.table({"s": pa.array([12, 7, None], pa.uint16())}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("s,x\n12,\n7,\n,\n")
    for name in ("jsonl", "parquet", "csv"):
        table = load(tmp_path / f"t.{name}", tmp_path / "cache", columns_of(s="string"))
        assert rows_of(table) == [("12",), ("7",), (None,)]


def test_ids_of_mixed_types_become_strings(tmp_path: Path) -> None:
    ids = [7] * 150 + ["a7", 8, True, "b", None] * 3
    (tmp_path / "t.jsonl").write_text("".join(f'{{"s": {json.dumps(one)}}}\n' for one in ids))
    table = load(tmp_path / "t.jsonl", tmp_path / "cache", columns_of(s="string"))
    assert [row[0] for row in rows_of(table)] == ["7"] * 150 + ["a7", "8", "true", "b", None] * 3


def test_numbers_of_any_type_are_read(tmp_path: Path) -> None:
    columns = columns_of(n="number", i="integer")
    tables = {
        "bool": pa.table({"n": [True, False, None], "i": [1.0, 0.0, float("nan")]}),
        "text": pa.table({"n": [" 1", "0e3", "NULL"], "i": ["1", "0", ""]}),
        "dictionary": pa.table({"n": pa.array([1, 0, None], pa.int8()).dictionary_encode(), "i": [1, 0, None]}),
    }
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        found = load(tmp_path / f"{name}.parquet", tmp_path / "cache", columns)
        assert rows_of(found) == [(1.0, 1), (0.0, 0), (None, None)], name


def test_missing_numbers_of_text_files(tmp_path: Path) -> None:
    texts = ("", " ", "NULL", "NaN", "nan", "NA", "\\N", "None")
    (tmp_path / "t.csv").write_text("n,i,s\n" + "".join(f"{text},{text},{text}\n" for text in texts))
    rows = rows_of(load(tmp_path / "t.csv", tmp_path / "cache", columns_of(n="number", i="integer", s="string")))
    assert rows == [(None, None, text or None) for text in texts], "a string is missing only if it is empty"


def test_texts_with_separators_are_lists_in_typed_files(tmp_path: Path) -> None:
    columns = columns_of(ids="integer list", words="string list")
    pq.write_table(pa.table({"ids": ["1|2", "", None], "words": ["a|b", None, "c"]}), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text('{"ids": "1|2", "words": "a|b"}\n{"ids": ""}\n{"words": "c"}\n')
    for name in ("parquet", "jsonl"):
        table = load(tmp_path / f"t.{name}", tmp_path / "cache", columns)
        assert rows_of(table) == [((1, 2), ("a", "b")), ((), ()), ((), ("c",))]


def test_windows_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b'\xef\xbb\xbfid;s\r\n1;x\r\n\r\n2;"y\r\nz"\r\n3;w')
    table = load(tmp_path / "t.csv", tmp_path / "cache", columns_of(id="integer", s="string"), delimiter=";")
    assert rows_of(table) == [(1, "x"), (2, "y\r\nz"), (3, "w")]


def test_a_header_from_the_settings(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("1\tx\n2\ty\n")
    table = load(tmp_path / "t.tsv", tmp_path / "cache", columns_of(s="string", id="integer"), header=("id", "s"))
    assert rows_of(table) == [("x", 1), ("y", 2)]


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.tfrecord", "t.csv.gz", "t.jsonl.zst", "t.tfrecord.gz"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, COLUMNS, ROWS * 50)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=rf"{name}: cannot be read: .+\. Expected a"):
        load(path, tmp_path / "cache")


def test_a_truncated_length_of_a_record(tmp_path: Path) -> None:
    path = written(tmp_path / "t.tfrecord", COLUMNS, ROWS)
    path.write_bytes(path.read_bytes() + struct.pack("<Q", 100))
    with pytest.raises(
        DataError, match=r"t\.tfrecord: cannot be read: its last record is cut off in its first 8 bytes"
    ):
        load(tmp_path / "t.tfrecord", tmp_path / "cache")


def test_the_format_must_be_known(tmp_path: Path) -> None:
    written(tmp_path / "t" / "a.csv", COLUMNS, ROWS)
    path = written(tmp_path / "t" / "b.jsonl", COLUMNS, ROWS)
    with pytest.raises(ConfigError, match=r"data\.format=auto: expected files of one format, got csv and jsonl"):
        load(tmp_path / "t", tmp_path / "cache")
    path.rename(tmp_path / "part-00000")
    with pytest.raises(ConfigError, match=r"part-00000: the name does not show the format"):
        load(tmp_path / "part-00000", tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"data\.format=xml: expected auto or one of csv, tsv"):
        load(tmp_path / "part-00000", tmp_path / "cache", format="xml")
    table = load(tmp_path / "part-00000", tmp_path / "cache", format="jsonl")
    assert rows_of(table) == ROWS
    assert table.place_of("n") == (Cell.NUMBER, 0)
