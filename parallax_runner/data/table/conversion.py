"""Converts files to the arrays of a stored table, block by block and in parallel. Memory does not grow with the
files."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.bad_rows import BadRowCounter, BadRows
from parallax_runner.data.table.encoded_block import EncodedBlock, encoded
from parallax_runner.data.table.good_rows import BadRow, good_rows
from parallax_runner.data.table.origins import write_files
from parallax_runner.data.table.part_writer import PartWriter
from parallax_runner.data.table.partition import Partition
from parallax_runner.data.table.progress import Progress
from parallax_runner.data.table.raw_block import RawBlock, Reader
from parallax_runner.data.table.read_columns import ReadColumn
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.stored_folder import strings_paths, write_description
from parallax_runner.data.table.stored_table import TRAIN, Cell, RawColumn
from parallax_runner.data.table.string_merge import StringMerge
from parallax_runner.errors import DataError

_WAITING_BLOCKS_PER_THREAD = 2


@dataclass(frozen=True)
class Plan:
    """What is converted, and how."""

    files: Mapping[str, Sequence[SourceFile]]
    reader: Reader
    columns: tuple[RawColumn, ...]
    partition: Partition | None
    bad_rows: BadRows

    @property
    def parts(self) -> tuple[str, ...]:
        """All parts of the table."""
        divided = self.partition.parts if self.partition is not None else ()
        return tuple(dict.fromkeys([*self.files, *divided]))

    @property
    def read(self) -> tuple[ReadColumn, ...]:
        """The columns to read of the files for training: those of the table, and maybe one that divides the rows."""
        extra = self.partition.read_column if self.partition is not None else None
        own = tuple(ReadColumn.of(column) for column in self.columns)
        return own if extra is None else (*own, extra)

    @property
    def own_read(self) -> tuple[ReadColumn, ...]:
        """The columns of the table."""
        return tuple(ReadColumn.of(column) for column in self.columns)

    @property
    def total_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for files in self.files.values() for file in files)


@dataclass(frozen=True)
class _Place:
    """Where a block comes from. `read_bytes` is the size of the files until its end."""

    part: str
    file: SourceFile
    file_number: int
    read_bytes: int


@dataclass(frozen=True)
class _Converted:
    """A converted block. `part` is the number of the part of each row if the value of a column determines it, otherwise
    None."""

    place: _Place
    rows: EncodedBlock
    first_line: int
    lines: np.ndarray | None
    part: np.ndarray | None
    bad: list[BadRow]


def convert(plan: Plan, folder: Path, *, threads: int | None = None) -> None:
    """Writes the table to an empty folder.

    Raises DataError if a file cannot be read, has bad rows or changes meanwhile, if there are no rows for training, or
    if the disk is too small, and OSError if the folder cannot be written.
    """
    count = threads or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count, thread_name_prefix="table") as pool, _Output(plan, folder) as output:
        for converted in _converted(plan, pool, count * _WAITING_BLOCKS_PER_THREAD):
            output.append(converted)
        output.finish(pool)


class _Output:
    """The folder of a table while blocks of rows are appended, in their order."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self._blocks = 0
        self._training_rows = 0  # rows of the files for training, also bad ones
        self._writers = {part: PartWriter(folder, self._scratch, part, plan.columns) for part in plan.parts}
        names = [column.name for column in plan.columns if column.cell is Cell.STRING]
        self._strings = StringMerge(self._scratch, names)
        self._counter = BadRowCounter(plan.bad_rows)
        self._progress = Progress(plan.total_bytes, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def append(self, converted: _Converted) -> None:
        """Appends the rows of a block to their parts."""
        self._counter.count(converted.bad, converted.place.file)
        for part, rows, lines in self._by_part(converted):
            self._writers[part].append(
                rows,
                block=self._blocks,
                file=converted.place.file_number,
                first_line=converted.first_line,
                lines=lines,
            )
        self._strings.add(converted.rows.dictionaries)
        self._blocks += 1
        written_bytes = sum(writer.written_bytes for writer in self._writers.values())
        self._progress.tell(converted.place.read_bytes, written_bytes)

    def _by_part(self, converted: _Converted) -> Iterator[tuple[str, EncodedBlock, np.ndarray | None]]:
        """Yields the parts, and the rows and lines of each. The lines are None if they are consecutive."""
        rows, lines, partition = converted.rows, converted.lines, self._plan.partition
        if partition is None or converted.place.part != TRAIN:
            yield converted.place.part, rows, lines
            return
        if lines is None:
            lines = np.arange(converted.first_line, converted.first_line + rows.rows)
        part_of_rows = converted.part
        if part_of_rows is None:
            # A row that is mended later must not move the rows behind it to other parts, so bad rows have numbers too.
            bad_before = np.searchsorted([one.number for one in converted.bad], lines)
            part_of_rows = partition.part_of_numbers(self._training_rows + np.arange(rows.rows) + bad_before)
        self._training_rows += rows.rows + len(converted.bad)
        for number, part in enumerate(partition.parts):
            chosen = part_of_rows == number
            yield part, rows.where(chosen), lines[chosen]

    def finish(self, pool: ThreadPoolExecutor) -> None:
        """Numbers the strings, and writes what describes the arrays."""
        plan, folder = self._plan, self._folder
        self._counter.tell()
        rows = {part: writer.rows for part, writer in self._writers.items()}
        if rows[TRAIN] == 0:
            paths = ", ".join(str(file.path) for file in plan.files[TRAIN][:3])
            raise DataError(f"{paths}: there are no rows to train on.")
        coded = [codes for writer in self._writers.values() for codes in writer.coded]
        self._strings.finish(coded, strings_paths(folder, plan.columns), pool)
        for writer in self._writers.values():
            writer.close()
        shutil.rmtree(self._scratch)
        write_files(folder, [str(file.path) for files in plan.files.values() for file in files])
        write_description(folder, plan.columns, rows, skipped_rows=self._counter.skipped)


def _converted(plan: Plan, pool: ThreadPoolExecutor, most_waiting: int) -> Iterator[_Converted]:
    """Yields the converted blocks in their order, however many threads there are."""
    waiting: deque[Future[_Converted]] = deque()
    try:
        for block, place in _all_blocks(plan):
            waiting.append(pool.submit(_convert_block, block, place, plan))
            if len(waiting) > most_waiting:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _all_blocks(plan: Plan) -> Iterator[tuple[RawBlock, _Place]]:
    number, done_bytes = 0, 0
    for part, files in plan.files.items():
        read = plan.read if part == TRAIN else plan.own_read
        for file in files:
            file.check_unchanged()
            has_rows = False
            for block, read_bytes in plan.reader.blocks(file, read):
                has_rows = True
                if read_bytes > file.size_bytes:  # someone appends to it, perhaps for ever
                    file.check_unchanged()
                yield block, _Place(part, file, number, done_bytes + read_bytes)
            file.check_unchanged()
            if not has_rows:
                raise DataError(f"{file.path}: this file has no rows. Remove it.")
            number += 1
            done_bytes += file.size_bytes


def _convert_block(block: RawBlock, place: _Place, plan: Plan) -> _Converted:
    read = plan.read if place.part == TRAIN else plan.own_read
    good = good_rows(block, read, most_bad=plan.bad_rows.most)
    own = good.columns[: len(plan.columns)]
    rows = encoded(own, plan.columns, good.rows)
    part = None
    last = good.columns[-1]
    if place.part == TRAIN and plan.partition is not None and plan.partition.column is not None:
        assert isinstance(last, pa.Array)
        part = plan.partition.part_of_values(last)
    return _Converted(place, rows, good.first_line, good.lines, part, good.bad)
