"""The rows of metrics of groups, in files: each rank writes those of its validation batches, and the driver reads all.

A metric of groups is no sum over batches, because a group's examples can be in batches of several ranks. The driver
holds some millions of rows in memory at a time: more rows are first divided into files with whole groups.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from parallax_runner.files.in_place import open_in_place
from parallax_runner.graph.group_measures import GroupedRows, GroupMeasure

FOLDER = "validation_rows"
# The groups, labels, scores and weights of a batch, by metric.
Rows = Mapping[str, Sequence[np.ndarray]]
# A row takes 24 bytes in a file. Sorting rows in memory takes about five times as much.
ROW = np.dtype([("group", "<i8"), ("score", "<f8"), ("label", "<f4"), ("weight", "<f4")])
MOST_ROWS = 2**22
# An odd number whose multiples spread over all 64 bits (Fibonacci hashing).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def folder_of_step(run_dir: Path, step: int) -> Path:
    """Returns the folder for the rows of the validation after `step` steps."""
    return run_dir / FOLDER / f"step-{step:09d}"


class RowWriter:
    """Writes the rows of one rank: a file for each metric. Use it as a context manager.

    Earlier files of the rank for the same step are replaced. Raises OSError if a file cannot be written.
    """

    def __init__(self, folder: Path, rank: int, metrics: Sequence[str]) -> None:
        self._folder, self._rank, self._metrics = folder, rank, tuple(metrics)
        self._files: dict[str, BinaryIO] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._metrics:
            self._folder.mkdir(parents=True, exist_ok=True)
        for name in self._metrics:
            self._files[name] = _opened(_path(self._folder, name, self._rank), self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def write(self, rows: Rows) -> None:
        """Adds the rows of a batch. Rows with the weight 0 are left out."""
        for name, columns in rows.items():
            groups, labels, scores, weights = columns
            records = np.empty(len(groups), ROW)
            records["group"], records["score"] = groups, scores
            records["label"], records["weight"] = labels, weights
            self._files[name].write(records[weights != 0].tobytes())


def group_values(folder: Path, ranks: int, measures: Mapping[str, GroupMeasure]) -> dict[str, float]:
    """Returns the values of the metrics over the rows of all ranks, and deletes the folder. Raises OSError if a file
    cannot be read."""
    found: dict[str, float] = {}
    for name, measure in measures.items():
        files = [_path(folder, name, rank) for rank in range(ranks)]
        sums = [measure.sums(rows) for rows in _whole_groups(files, folder / f"{name}-parts")]
        found |= measure.result(name, np.sum(sums, axis=0))
    delete_rows(folder)
    return found


def delete_rows(folder: Path) -> None:
    """Deletes a folder of rows, if there is one."""
    shutil.rmtree(folder, ignore_errors=True)


def _path(folder: Path, metric: str, rank: int) -> Path:
    return folder / f"{metric}-{rank:05d}.rows"


def _whole_groups(files: Sequence[Path], parts: Path) -> Iterator[GroupedRows]:
    """Yields the rows of the files, in parts with whole groups. Writes the parts to a folder if they are many."""
    rows = sum(file.stat().st_size for file in files) // ROW.itemsize
    number = -(-rows // MOST_ROWS)
    if number > 1:
        files = _divided(files, parts, number)
    for group_of_files in [files] if number <= 1 else [[file] for file in files]:
        records = np.concatenate([np.fromfile(file, ROW) for file in group_of_files])
        yield GroupedRows.of(records["group"], records["label"], records["score"], records["weight"])


def _divided(files: Sequence[Path], folder: Path, number: int) -> list[Path]:
    """Copies the rows to `number` files. All rows of a group are in the same file."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{part:05d}.rows" for part in range(number)]
    with ExitStack() as stack:
        opened = [_opened(path, stack) for path in paths]
        for file in files:
            for records in _blocks(file):
                part = _part_of(records["group"], number)
                for one in np.unique(part):
                    opened[one].write(records[part == one].tobytes())
    return paths


def _opened(path: Path, stack: ExitStack) -> BinaryIO:
    return stack.enter_context(open(open_in_place(path, os.O_WRONLY | os.O_TRUNC), "wb"))


def _blocks(file: Path) -> Iterator[np.ndarray]:
    with file.open("rb") as opened:
        while content := opened.read(MOST_ROWS // 4 * ROW.itemsize):
            yield np.frombuffer(content, ROW)


def _part_of(groups: np.ndarray, number: int) -> np.ndarray:
    mixed = groups.astype(np.uint64) * _SPREAD
    return (mixed >> np.uint64(32)) % np.uint64(number)
