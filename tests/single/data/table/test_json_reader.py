"""JSON lines: one object per line; the rows keep their lines, whatever is between them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.convert import BadRows, Sources, stored_table
from parallax_runner.data.table.json_reader import SAMPLED_ROWS, JsonBlock, JsonReader
from parallax_runner.data.table.origins import row_origin
from parallax_runner.data.table.read_columns import BadBlock, ReadColumn
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.stored_table import StoredTable
from parallax_runner.data.table.text_stream import TextPiece
from parallax_runner.errors import DataError
from tests.single.data.table.rows_of import columns_of, rows_of

COLUMNS = columns_of(i="integer", s="string")
READ = [ReadColumn.of(column) for column in COLUMNS]


def block_of(text: str, first_line: int = 1) -> JsonBlock:
    data = text.encode()
    return JsonBlock(piece=TextPiece(data, first_line, text.count("\n") + (not text.endswith("\n")), len(data)))


def load(text: str, tmp_path: Path, bad_rows: BadRows | None = None) -> StoredTable:
    (tmp_path / "t.jsonl").write_text(text, encoding="utf-8", newline="")
    sources = Sources({"train": (str(tmp_path / "t.jsonl"),)})
    return stored_table(sources, COLUMNS[:1], cache_dir=str(tmp_path / "cache"), bad_rows=bad_rows)


@pytest.mark.parametrize("seed", range(10))
def test_rows_keep_their_lines(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lines, expected = [], []
    for number in range(40):
        blank = generator.choice(["", " ", "\t ", "\r"])
        is_row = generator.random() < 0.6
        lines.append(blank * is_row + json.dumps({"i": number, "s": "日\n"}) if is_row else blank)
        expected += [number] if is_row else []
    block = block_of("\n".join(lines) + "\n" * bool(generator.integers(2)), first_line=5)
    integers, strings = block.columns(READ)
    assert isinstance(integers, pa.Array) and isinstance(strings, pa.Array)
    assert integers.to_pylist() == expected
    assert set(strings.to_pylist()) == {"日\n"}
    assert (block.lines() - 5).tolist() == expected
    halves = block.divided()
    assert halves is not None
    assert [line for half in halves for line in half.lines()] == block.lines().tolist()


@pytest.mark.parametrize("bad", ['{"i": 1}{"i": 2}', '{"i": 1} {"i": 2} {"i": 3}', '{"i":\n1}'])
def test_an_object_that_is_not_alone_on_its_line_is_a_bad_row(bad: str, tmp_path: Path) -> None:
    text = '{"i": 7}\n' * 3 + bad + "\n" + '{"i": 8}\n'
    with pytest.raises(BadBlock):
        block_of(text).columns(READ)
    with pytest.raises(DataError, match=r"t\.jsonl: line 4: expected an object of JSON"):
        load(text, tmp_path)
    table = load(text, tmp_path, bad_rows=BadRows("skip"))
    assert rows_of(table) == [(7,)] * 3 + [(8,)]
    assert table.skipped_rows == bad.count("\n") + 1
    assert table.folder is not None
    assert row_origin(table.folder, "train", 3)[1] == text.count("\n")


def test_a_block_of_one_row_is_not_divided() -> None:
    assert block_of('\n {"i": 1}\n\t\n').divided() is None


def test_names_come_from_the_first_rows_in_their_order(tmp_path: Path) -> None:
    rows = [{"b": 1}, {"a": 2, "b": 3}, *[{"a": 1}] * SAMPLED_ROWS, {"late": 1}]
    path = tmp_path / "t.jsonl"
    path.write_text("[1]\n" + "".join(json.dumps(row) + "\n" for row in rows))
    assert JsonReader().names(SourceFile("t.jsonl", path, path.stat().st_size, 0)) == ["b", "a"]


def test_numbers_become_strings_and_mixed_types_are_refused_together() -> None:
    (words,) = block_of('{"s": null}\n{"s": 12}\n').columns(READ[1:])
    assert isinstance(words, pa.Array)
    assert words.to_pylist() == [None, "12"]
    with pytest.raises(pa.ArrowInvalid):
        block_of('{"s": 12}\n{"s": "a"}\n').columns(READ[1:])
