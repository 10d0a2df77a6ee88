"""Bad rows are named with file, line, column and value, or skipped and counted. Each row of a table has an origin."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parallax_runner.data.table import text_stream
from parallax_runner.data.table.convert import BadRows, Partition, Sources, stored_table
from parallax_runner.data.table.origins import row_origin
from parallax_runner.data.table.stored_table import RawColumn, StoredTable
from parallax_runner.errors import ConfigError, DataError
from tests.single.data.table.rows_of import columns_of, rows_of

COLUMNS = columns_of(i="integer", n="number", s="string", l="integer list")
GOOD = 'ok\nwith ""quotes""'


def csv_text(bad: bytes, *, line: int = 300) -> bytes:
    """Returns a table with a bad row on this line. Rows before it take two lines each, and one line is empty."""
    rows = [f'{number},1.5,"{GOOD}",1|2\n'.encode() for number in range((line - 3) // 2)]
    filler = [b"7,7,x,\n"] * (line - 3 - 2 * len(rows))
    return b"".join([b"i,n,s,l\n", *rows[:3], b"\n", *rows[3:], *filler, bad, b"\n", *rows])


def load(path: Path, tmp_path: Path, columns: list[RawColumn] = COLUMNS, **named: Any) -> StoredTable:
    return stored_table(Sources({"train": (str(path),)}), columns, cache_dir=str(tmp_path / "cache"), **named)


BAD_CELLS = {
    "a word for an integer": (b"x1,1,s,1", "column i: expected an integer, got 'x1'"),
    "a fraction for an integer": (b"1.5,1,s,1", "column i: expected an integer, got '1.5'"),
    "a word for a number": (b"1,1.x,s,1", "column n: expected a finite number, got '1.x'"),
    "an infinity": (b"1,inf,s,1", "column n: expected a finite number, got 'inf'"),
    "a number beyond float32": (b"1,1e39,s,1", "column n: expected a finite number, got '1e39'"),
    "not UTF-8": (b"1,1,a\xff,1", r"column s: expected a string in UTF-8, got 'a\\\\xff'"),
    "a word in a list": (b"1,1,s,1|b", "column l: expected a list, each value an integer, got '1|b'"),
    "a missing column": (b"1,1,s", r"expected 4 columns, got 3\."),
    "another column": (b"1,1,s,1,2", r"expected 4 columns, got 5\."),
}


@pytest.mark.parametrize("case", BAD_CELLS)
@pytest.mark.parametrize("block_bytes", [100, 2**21])
@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_row_is_named(
    case: str, block_bytes: int, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, message = BAD_CELLS[case]
    text = csv_text(bad)
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text) if packed else text)
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", block_bytes)
    assert text.split(b"\n")[299] == bad
    with pytest.raises(DataError, match=rf"{re.escape(path.name)}: line 300[:,] {message}.*data\.on_bad_row=skip"):
        load(path, tmp_path)
    skipped = load(path, tmp_path, bad_rows=BadRows("skip", at_most=1))
    good = text.replace(bad + b"\n", b"", 1)
    (tmp_path / "good.csv").write_bytes(good)
    assert rows_of(skipped) == rows_of(load(tmp_path / "good.csv", tmp_path))
    assert skipped.skipped_rows == 1


def test_skipped_rows_are_counted_named_and_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.csv"
    path.write_text("i,n,s,l\n" + "".join(f"{'x' if number % 5 == 4 else 1},1,s,\n" for number in range(100)))
    table = load(path, tmp_path, bad_rows=BadRows("skip", at_most=20))
    assert (table.parts["train"].rows, table.skipped_rows) == (80, 20)
    named = [record.message for record in caplog.records if "skipped a bad row" in record.message]
    assert [f"line {line}, column i" in message for message, line in zip(named, (6, 11, 16, 21, 26), strict=True)] == [
        True
    ] * 5
    assert "skipped 20 bad rows" in caplog.text
    with pytest.raises(DataError, match=r"data\.max_bad_rows=19: more than 19 bad rows; the last one is .*line 101"):
        load(path, tmp_path, bad_rows=BadRows("skip", at_most=19))


def test_only_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("i,n,s,l\n" + "x,1,s,\n" * 50)
    with pytest.raises(DataError, match=r"t\.csv: there are no rows to train on"):
        load(tmp_path / "t.csv", tmp_path, bad_rows=BadRows("skip", at_most=50))


BAD_OBJECTS = {
    "a word for a number": ('{"i": 1, "n": "x"}', 'column n: expected a finite number, got .*"x"'),
    "a number for a list": ('{"i": 1, "l": 3}', "column l: expected a list, each value an integer, got '3'"),
    "no object": ("[1]", "expected an object of JSON"),
    "no JSON": ('{"i": 1', "expected an object of JSON: "),
}


@pytest.mark.parametrize("case", BAD_OBJECTS)
def test_a_bad_object_is_named(case: str, tmp_path: Path) -> None:
    bad, message = BAD_OBJECTS[case]
    good = '{"i": 1, "n": 2.5, "s": "x", "l": [1, 2]}\n'
    (tmp_path / "t.jsonl").write_text(good * 6 + "\n" + bad + "\n" + good)
    with pytest.raises(DataError, match=rf"t\.jsonl: line 8[:,] {message}"):
        load(tmp_path / "t.jsonl", tmp_path)
    table = load(tmp_path / "t.jsonl", tmp_path, bad_rows=BadRows("skip"))
    assert rows_of(table) == [(1, 2.5, "x", (1, 2))] * 7


def test_bad_utf8_in_json(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"s": "a"}\n{"s": "\xff"}\n')
    with pytest.raises(DataError, match=r"t\.jsonl: line 2: expected text in UTF-8"):
        load(tmp_path / "t.jsonl", tmp_path, columns_of(s="string"))


def test_bad_rows_of_typed_files(tmp_path: Path) -> None:
    numbers = pa.array([1.0, 2.0, float("inf"), 4.5, None])
    pq.write_table(pa.table({"n": numbers, "s": pa.array([b"a", b"\xff", b"b", b"c", None])}), tmp_path / "t.parquet")
    cases = {
        "number": ("n", r"t\.parquet: row 3, column n: expected a finite number, got 'inf'"),
        "integer": ("n", r"t\.parquet: row 3, column n: expected an integer, got 'inf'"),
        "string": ("s", r"t\.parquet: row 2, column s: expected a string in UTF-8, got \"?.*xff"),
    }
    for kind, (name, message) in cases.items():
        with pytest.raises(DataError, match=message):
            load(tmp_path / "t.parquet", tmp_path, columns_of(**{name: kind}))
    table = load(tmp_path / "t.parquet", tmp_path, columns_of(n="integer"), bad_rows=BadRows("skip"))
    assert rows_of(table) == [(1,), (2,), (None,)]
    with pytest.raises(DataError, match=r"row 1, column n: expected a list"):
        load(tmp_path / "t.parquet", tmp_path, columns_of(n="number list"))


def test_bad_examples(tmp_path: Path) -> None:
    import tensorflow as tf

    def example(**features: Any) -> bytes:
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    one = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
    two = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2]))
    word = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))
    bad = {
        "two values": (example(i=two), "column i: expected an integer, got .*value: 2"),
        "another kind": (example(i=word), "column i: expected an integer, got .*bytes_list"),
        "no example": (b"\xff\xff", "expected a tf.train.Example"),
    }
    for case, (record, message) in bad.items():
        path = tmp_path / f"{case}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for each in [example(i=one)] * 5 + [record] + [example()]:
                writer.write(each)
        with pytest.raises(DataError, match=rf"row 6[:,] {message}"):
            load(path, tmp_path, columns_of(i="integer"))
        table = load(path, tmp_path, columns_of(i="integer"), bad_rows=BadRows("skip"))
        assert rows_of(table) == [(1,)] * 5 + [(None,)]


def test_the_origin_of_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = csv_text(b"x,1,s,")
    for name in ("a", "b"):
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / f"{name}.csv").write_bytes(text)
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 300)
    partition = Partition(fractions={"validation": 0.4})
    for divided in (None, partition):
        table = load(tmp_path / "t", tmp_path, partition=divided, bad_rows=BadRows("skip"))
        assert table.folder is not None
        lines = text.decode().split("\n")
        origins = set()
        for part, stored in table.parts.items():
            integers = [row[0] for row in rows_of(table, part)]
            for row in range(stored.rows):
                file, line = row_origin(table.folder, part, row)
                assert lines[line - 1].partition(",")[0] == str(integers[row])
                origins.add((file, line))
        assert len(origins) == sum(stored.rows for stored in table.parts.values())
        assert {file for file, _ in origins} == {str(tmp_path / "t" / f"{name}.csv") for name in ("a", "b")}


def test_a_bad_row_with_a_huge_cell(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("i,n,s,l\n" + "x,1," + "s" * 200_000 + ",1\n")
    with pytest.raises(DataError, match=r"t\.csv: line 2, column i: expected an integer, got 'x'"):
        load(tmp_path / "t.csv", tmp_path)


def test_an_open_quotation_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_stream, "MOST_RECORD_BYTES", 1000)
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 100)
    (tmp_path / "t.csv").write_text("i,n,s,l\n1,1,a,1\n" + '2,2,"b,\n' + "3,3,c,1\n" * 1000)
    with pytest.raises(DataError, match=r"t\.csv: line 3: the row that begins here has no end within 1000 bytes"):
        load(tmp_path / "t.csv", tmp_path)


@pytest.mark.parametrize(("values", "message"), [(("ignore", 1), "on_bad_row=ignore"), (("skip", -1), "rows=-1")])
def test_settings_of_bad_rows(values: tuple[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BadRows(*values)
