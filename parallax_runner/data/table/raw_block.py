"""Some consecutive rows of a file, as they are in the file. Each format has its own kind of block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parallax_runner.data.table.read_columns import Column, ReadColumn
from parallax_runner.data.table.sources import SourceFile


@dataclass(frozen=True)
class Fault:
    """What is wrong with a row. `column` and `value` are None if no cell is wrong, but the row."""

    expected: str
    column: str | None = None
    value: str | None = None


class RawBlock(ABC):
    """Rows of one file."""

    @property
    @abstractmethod
    def place(self) -> str:
        """What numbers a row in messages: "line" or "row"."""

    @abstractmethod
    def columns(self, read: Sequence[ReadColumn]) -> list[Column]:
        """Returns the columns, or raises BadBlock, pa.ArrowInvalid or pa.ArrowNotImplementedError if a row is bad."""

    @abstractmethod
    def lines(self) -> np.ndarray:
        """Returns the line of each row in the file, int64 [rows], from 1 on."""

    @abstractmethod
    def regular_start(self, rows: int) -> int | None:
        """Returns the line of the first row if the other rows are on the next lines. `rows` is the number of rows."""

    @abstractmethod
    def divided(self) -> tuple[RawBlock, RawBlock] | None:
        """Returns both halves of the rows, or None if there is only one row."""

    @abstractmethod
    def fault_of_row(self, read: Sequence[ReadColumn]) -> Fault | None:
        """Returns what is wrong with this block's only row as a whole, or None if a cell is wrong."""

    @abstractmethod
    def cell(self, name: str) -> str:
        """Returns a cell of this block's only row, for a message."""


class Reader(ABC):
    """Reads files of one format. If it `has_schema`, all rows of a file have the same columns. If it `takes_header`, a
    setting can name the columns."""

    has_schema = True
    takes_header = False

    @abstractmethod
    def names(self, file: SourceFile) -> Sequence[str]:
        """Returns the names of the columns in a file, or without a schema those in its first rows. Raises DataError if
        the file cannot be read."""

    @abstractmethod
    def blocks(self, file: SourceFile, read: Sequence[ReadColumn]) -> Iterator[tuple[RawBlock, int]]:
        """Yields the rows of a file in blocks, each with the number of bytes of the file that have been read until
        then. Raises DataError if the file cannot be read."""
