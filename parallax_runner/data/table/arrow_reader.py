"""Reads files that have columns and types: Parquet, and Arrow's IPC files and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parallax_runner.data.table.raw_block import Fault, RawBlock, Reader
from parallax_runner.data.table.read_columns import Column, ReadColumn, as_read
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.errors import DataError

BATCH_ROWS = 2**14


@dataclass(frozen=True)
class ArrowBlock(RawBlock):
    """Rows of a batch. `first_row` is the number of the first one in its file, from 1 on."""

    batch: pa.RecordBatch
    first_row: int

    @property
    def place(self) -> str:
        """See RawBlock."""
        return "row"

    def columns(self, read: Sequence[ReadColumn]) -> list[Column]:
        """See RawBlock."""
        return [as_read(self.batch.column(column.name), column) for column in read]

    def lines(self) -> np.ndarray:
        """See RawBlock."""
        return np.arange(self.first_row, self.first_row + self.batch.num_rows)

    def regular_start(self, rows: int) -> int | None:
        """See RawBlock."""
        return self.first_row

    def divided(self) -> tuple[ArrowBlock, ArrowBlock] | None:
        """See RawBlock."""
        middle = self.batch.num_rows // 2
        if middle == 0:
            return None
        second = ArrowBlock(self.batch.slice(middle), self.first_row + middle)
        return ArrowBlock(self.batch.slice(0, middle), self.first_row), second

    def fault_of_row(self, read: Sequence[ReadColumn]) -> Fault | None:
        """See RawBlock."""
        return None

    def cell(self, name: str) -> str:
        """See RawBlock."""
        try:
            return str(self.batch.column(name)[0].as_py())
        except UnicodeDecodeError as error:
            return error.object.decode("utf-8", errors="backslashreplace")


def blocks_of(batch: pa.RecordBatch, first_row: int) -> Iterator[ArrowBlock]:
    """Yields a batch in blocks."""
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield ArrowBlock(batch.slice(start, BATCH_ROWS), first_row + start)


class ParquetReader(Reader):
    """Reads Parquet."""

    def names(self, file: SourceFile) -> Sequence[str]:
        """See Reader."""
        with _told(file, "Parquet"), _parquet_file(file) as opened:
            return list(opened.schema_arrow.names)

    def blocks(self, file: SourceFile, read: Sequence[ReadColumn]) -> Iterator[tuple[RawBlock, int]]:
        """See Reader."""
        with _told(file, "Parquet"), _parquet_file(file) as opened:
            total_rows, first_row = max(1, opened.metadata.num_rows), 1
            names = list(dict.fromkeys(column.name for column in read))
            for batch in opened.iter_batches(batch_size=BATCH_ROWS, columns=names):
                read_rows = first_row - 1 + batch.num_rows
                for block in blocks_of(batch, first_row):
                    yield block, file.size_bytes * read_rows // total_rows
                first_row += batch.num_rows


class ArrowReader(Reader):
    """Reads Arrow's IPC files and streams."""

    def names(self, file: SourceFile) -> Sequence[str]:
        """See Reader."""
        with _told(file, "Arrow IPC"), _opened(file) as (_, batches):
            return list(batches.schema.names)

    def blocks(self, file: SourceFile, read: Sequence[ReadColumn]) -> Iterator[tuple[RawBlock, int]]:
        """See Reader."""
        names = list(dict.fromkeys(column.name for column in read))
        first_row = 1
        with _told(file, "Arrow IPC"), _opened(file) as (raw, batches):
            for batch in _batches(batches):
                for block in blocks_of(batch.select(names), first_row):
                    yield block, raw.tell()
                first_row += batch.num_rows


def _parquet_file(file: SourceFile) -> pq.ParquetFile:
    return pq.ParquetFile(file.path)


@contextmanager
def _opened(file: SourceFile) -> Iterator[tuple[pa.NativeFile, pa.RecordBatchFileReader | pa.RecordBatchStreamReader]]:
    with pa.memory_map(str(file.path)) as raw:
        if file.compression is not None:
            yield raw, pa.ipc.open_stream(pa.CompressedInputStream(raw, file.compression))
            return
        try:
            batches = pa.ipc.open_file(raw)
        except pa.ArrowInvalid:
            raw.seek(0)
            batches = pa.ipc.open_stream(raw)
        yield raw, batches


def _batches(opened: pa.RecordBatchFileReader | pa.RecordBatchStreamReader) -> Iterator[pa.RecordBatch]:
    if isinstance(opened, pa.RecordBatchFileReader):
        for number in range(opened.num_record_batches):
            yield opened.get_batch(number)
    else:
        yield from opened


@contextmanager
def _told(file: SourceFile, kind: str) -> Iterator[None]:
    """Raises DataError in place of what pyarrow raises about a damaged file."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        first_line = str(error).splitlines()[0]
        raise DataError(f"{file.path}: cannot be read: {first_line}. Expected a file in the format {kind}.") from error
