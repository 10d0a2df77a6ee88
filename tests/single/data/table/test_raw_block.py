"""What all kinds of blocks have in common: halves of a block are the block, down to single rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from parallax_runner.data.table.raw_block import RawBlock
from parallax_runner.data.table.read_columns import ReadColumn
from parallax_runner.data.table.readers import reader_of
from parallax_runner.data.table.sources import SourceFile, Sources
from tests.single.data.table.rows_of import Row, columns_of
from tests.single.data.table.written import written

COLUMNS = columns_of(i="integer", s="string")
READ = [ReadColumn.of(column) for column in COLUMNS]
ROWS: list[Row] = [(number, word) for number, word in enumerate(["a", "é", "日本", 'q"', "z, w", "b", "c"])]
FORMATS = ["csv", "tsv", "jsonl", "parquet", "arrow", "tfrecord"]


def blocks_of(name: str, folder: Path) -> list[RawBlock]:
    path = written(folder / f"t.{name}", COLUMNS, ROWS)
    file = SourceFile(path.name, path, path.stat().st_size, 0)
    return [block for block, _ in reader_of(Sources({}), name).blocks(file, READ)]


def single_rows(block: RawBlock) -> Iterator[RawBlock]:
    halves = block.divided()
    if halves is None:
        yield block
        return
    for half in halves:
        yield from single_rows(half)


def values(block: RawBlock) -> list[tuple[Any, ...]]:
    arrays = block.columns(READ)
    assert all(isinstance(array, pa.Array) for array in arrays)
    return list(zip(*(array.to_pylist() for array in arrays if isinstance(array, pa.Array)), strict=True))


@pytest.mark.parametrize("name", FORMATS)
def test_the_rows_of_a_block_one_by_one(name: str, tmp_path: Path) -> None:
    blocks = blocks_of(name, tmp_path)
    singles = [single for block in blocks for single in single_rows(block)]
    assert [row for block in blocks for row in values(block)] == ROWS
    assert [row for single in singles for row in values(single)] == ROWS
    lines = [line for block in blocks for line in block.lines().tolist()]
    first = 2 if name in ("csv", "tsv") else 1
    assert lines == list(range(first, first + len(ROWS)))
    assert [line for single in singles for line in single.lines().tolist()] == lines
    for single, line, (number, word) in zip(singles, lines, ROWS, strict=True):
        assert single.regular_start(1) == line
        assert single.fault_of_row(READ) is None
        assert str(number) in single.cell("i")
        assert single.place == ("line" if name in ("csv", "tsv", "jsonl") else "row")
        assert not word.isalpha() or not word.isascii() or word in single.cell("s")
