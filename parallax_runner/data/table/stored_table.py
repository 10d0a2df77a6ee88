"""What files become before training: row-major arrays of fixed width, which a process maps into its memory.

A row of a step is anywhere in the files. It costs one page of each array, however many columns the array has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

MISSING_CODE = 0  # the code of a cell without a string
MISSING_INTEGER = np.iinfo(np.int64).min
TRAIN, VALIDATION, TEST = "train", "validation", "test"


class Cell(Enum):
    """What a cell of a column contains."""

    NUMBER = "number"  # float32; NaN if it is missing
    INTEGER = "integer"  # int64; MISSING_INTEGER if it is missing
    STRING = "string"  # a code, int32; MISSING_CODE if it is missing


BOTH, NEITHER = "lower_and_strip_punctuation", "none"
LOWERS, STRIPS = ("lower", BOTH), ("strip_punctuation", BOTH)
STANDARDIZES = (BOTH, "lower", "strip_punctuation", NEITHER)
WHITESPACE, CHARACTER = "whitespace", "character"
SPLITS = (WHITESPACE, CHARACTER)


@dataclass(frozen=True)
class Words:
    """How a text becomes words. `standardize` is one of STANDARDIZES, `split` one of SPLITS."""

    standardize: str
    split: str


@dataclass(frozen=True)
class RawColumn:
    """A column as it is read from files.

    If the column `is_list`, a cell has any number of values. In a text file, `separator` separates them. If `words` is
    set, a cell of a file is a text, and the values are its words.
    """

    name: str
    cell: Cell
    is_list: bool = False
    separator: str | None = None
    words: Words | None = None


@dataclass(frozen=True)
class Strings:
    """The distinct strings of a column. The string with code c is `data[offsets[c] : offsets[c + 1]]`, in UTF-8. Code
    MISSING_CODE is an empty string."""

    offsets: np.ndarray  # int64 [codes + 1]
    data: np.ndarray  # uint8

    @property
    def count(self) -> int:
        """The number of codes."""
        return len(self.offsets) - 1

    def bytes_of(self, code: int) -> bytes:
        """Returns the string with this code."""
        return bytes(self.data[self.offsets[code] : self.offsets[code + 1]])


@dataclass(frozen=True)
class StoredList:
    """A list column. Row i has `values[offsets[i] : offsets[i + 1]]`."""

    offsets: np.ndarray  # int64 [rows + 1]
    values: np.ndarray  # float32, int64, or int32 codes


@dataclass(frozen=True)
class StoredPart:
    """The rows for training, validation or testing, in the order of the files.

    The columns of a matrix are the columns of its kind that are no lists, in the order of `StoredTable.columns`.
    """

    rows: int
    numbers: np.ndarray  # float32 [rows, number columns]
    integers: np.ndarray  # int64 [rows, integer columns]
    codes: np.ndarray  # int32 [rows, string columns]
    lists: Mapping[str, StoredList] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredTable:
    """All parts of a table. `strings` has the strings of each string column, which all parts share. `digest` changes
    with any value of the training part. `skipped_rows` is the number of bad rows that were left out. `absent` has the
    columns that a file of a part lacks: their cells are missing."""

    columns: tuple[RawColumn, ...]
    parts: Mapping[str, StoredPart]
    strings: Mapping[str, Strings]
    digest: str
    skipped_rows: int = 0
    absent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folder: Path | None = None  # in the cache, for `row_origin`

    def place_of(self, name: str) -> tuple[Cell, int]:
        """Returns the matrix of a column that is no list, and its column there."""
        column = next(one for one in self.columns if one.name == name)
        beside = [one.name for one in self.columns if one.cell is column.cell and not one.is_list]
        return column.cell, beside.index(name)
