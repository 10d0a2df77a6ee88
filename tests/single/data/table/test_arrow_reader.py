"""Parquet and Arrow files: blocks of limited size, with the numbers of their rows, of the wanted columns only."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parallax_runner.data.table.arrow_reader import BATCH_ROWS, ArrowBlock, ArrowReader, ParquetReader, blocks_of
from parallax_runner.data.table.read_columns import ReadColumn
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.errors import DataError
from tests.single.data.table.rows_of import columns_of

ROWS = 2 * BATCH_ROWS + 100
READ = [ReadColumn.of(column) for column in columns_of(i="integer", s="string")]
TABLE = pa.table({"unused": np.zeros(ROWS), "s": np.arange(ROWS).astype(str), "i": np.arange(ROWS)})
KINDS = ["parquet", "arrow", "arrows", "arrows.gz"]


def write(path: Path, table: pa.Table, rows_at_once: int) -> SourceFile:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows_at_once)
    else:
        make = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        with make(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_at_once)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    return SourceFile(path.name, path, path.stat().st_size, 0)


def reader_for(kind: str) -> ParquetReader | ArrowReader:
    return ParquetReader() if kind == "parquet" else ArrowReader()


@pytest.mark.parametrize("rows_at_once", [1000, BATCH_ROWS + 7, ROWS])
@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_are_read_in_blocks(kind: str, rows_at_once: int, tmp_path: Path) -> None:
    file = write(tmp_path / f"t.{kind}", TABLE, rows_at_once)
    reader = reader_for(kind)
    assert reader.names(file) == ["unused", "s", "i"]
    first, read_bytes = 1, 0
    for block, until_bytes in reader.blocks(file, READ):
        assert isinstance(block, ArrowBlock)
        rows = block.batch.num_rows
        assert 0 < rows <= BATCH_ROWS
        assert sorted(block.batch.schema.names) == ["i", "s"]
        integers, words = block.columns(READ)
        assert isinstance(integers, pa.Array) and isinstance(words, pa.Array)
        expected = np.arange(first, first + rows)
        np.testing.assert_array_equal(block.lines(), expected)
        np.testing.assert_array_equal(integers.to_numpy(), expected - 1)
        assert words.to_pylist() == (expected - 1).astype(str).tolist()
        assert read_bytes <= until_bytes <= file.size_bytes
        first, read_bytes = first + rows, until_bytes
    assert first == ROWS + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_rows(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path / f"t.{kind}", TABLE.slice(0, 0), 10)
    assert list(reader_for(kind).blocks(file, READ)) == []
    assert reader_for(kind).names(file) == ["unused", "s", "i"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_refused(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path / f"t.{kind}", TABLE, 1000)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=rf"t\.{kind}: cannot be read: .*Expected a file in the format"):
        list(reader_for(kind).blocks(file, READ))


def test_a_column_that_is_wanted_twice_is_read_once(tmp_path: Path) -> None:
    for kind in ("parquet", "arrow"):
        file = write(tmp_path / f"t.{kind}", TABLE, ROWS)
        block, _ = next(iter(reader_for(kind).blocks(file, [READ[0], READ[0]])))
        assert isinstance(block, ArrowBlock)
        assert block.batch.schema.names == ["i"]


def test_cells_for_messages() -> None:
    (block,) = blocks_of(pa.record_batch({"l": [[1, None]], "n": [None], "b": [b"\xff"]}), 1)
    not_text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
    (bad,) = blocks_of(pa.record_batch({"s": not_text}), 1)
    assert [block.cell("l"), block.cell("n"), bad.cell("s")] == ["[1, None]", "None", "a\\xff"]
