"""The columns as pyarrow reads them: each has one type of Arrow, whatever the format of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parallax_runner.data.table.stored_table import Cell, RawColumn, Words
from parallax_runner.data.table.words_of_texts import words_of_texts

# A number cell with one of these texts is missing.
MISSING_TEXTS = ("", "null", "NULL", "Null", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "None", "\\N")
_TYPES = {Cell.NUMBER: pa.float32(), Cell.INTEGER: pa.int64(), Cell.STRING: pa.string()}
EXPECTED = {Cell.NUMBER: "a finite number", Cell.INTEGER: "an integer", Cell.STRING: "a string in UTF-8"}


class BadBlock(Exception):
    """A block of rows has a bad row."""


@dataclass(frozen=True)
class ReadColumn:
    """A column to read. `type` is the type of Arrow of a cell, or of a value in a list."""

    name: str
    cell: Cell
    type: pa.DataType
    is_list: bool = False
    separator: str | None = None
    words: Words | None = None

    @classmethod
    def of(cls, column: RawColumn) -> ReadColumn:
        """Returns a column of the table."""
        return cls(column.name, column.cell, _TYPES[column.cell], column.is_list, column.separator, column.words)

    @property
    def expected(self) -> str:
        """What a good cell is, for messages."""
        value = EXPECTED[self.cell]
        return f"a list, each value {value}" if self.has_lists else value

    @property
    def has_lists(self) -> bool:
        """Whether a cell in a file is a list, or a text with a separator between the values of one."""
        return self.is_list and self.words is None


@dataclass(frozen=True)
class Lists:
    """The lists of some rows. `lengths` is int64 [rows]; `values` has all values, in order."""

    lengths: np.ndarray
    values: pa.Array


Column: TypeAlias = "pa.Array | Lists"


def as_read(array: pa.Array, column: ReadColumn) -> Column:
    """Returns an array of any type as the column's type. Raises pa.ArrowInvalid if a cell has no such value, and
    pa.ArrowNotImplementedError if the type has no such values."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if column.is_list:
        return _lists(array, column)
    return _checked(_values(array, column), column)


def _lists(array: pa.Array, column: ReadColumn) -> Lists:
    if column.words is not None:
        lengths, words = words_of_texts(_checked(array.cast(pa.string()), column), column.words)
        return Lists(lengths, _values(words, column))
    if column.separator is not None and _is_text(array.type):
        array = pc.split_pattern(_without_missing(array.cast(pa.string())), column.separator)
    if pa.types.is_null(array.type):
        array = array.cast(pa.list_(column.type))
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or _is_fixed(array.type)):
        raise pa.ArrowNotImplementedError(f"{array.type} has no lists")
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()).to_numpy()
    values = array.flatten()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return Lists(lengths, _checked(_values(values, column), column))


def _is_fixed(type_: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
    )


def _without_missing(array: pa.Array) -> pa.Array:
    """Returns texts with a null in place of each empty text, so that it becomes an empty list."""
    is_empty = pc.equal(array, "")
    return pc.if_else(pc.fill_null(is_empty, True), pa.scalar(None, array.type), array)


def _values(array: pa.Array, column: ReadColumn) -> pa.Array:
    if array.type == column.type:
        return array
    if column.cell is Cell.STRING:
        return array.cast(pa.string())
    if _is_text(array.type):
        array = _numbers_of_texts(array)
    if pa.types.is_floating(array.type) and column.cell is Cell.INTEGER:
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
        return array.cast(column.type)
    is_rounded = column.cell is Cell.NUMBER  # 16777217 becomes 16777216.0 as float32
    return array.cast(column.type, safe=not is_rounded)


def _numbers_of_texts(array: pa.Array) -> pa.Array:
    texts = pc.utf8_trim_whitespace(array.cast(pa.string()))
    is_missing = pc.is_in(texts, value_set=pa.array(MISSING_TEXTS))
    return pc.if_else(is_missing, pa.scalar(None, pa.string()), texts)


def _checked(array: pa.Array, column: ReadColumn) -> pa.Array:
    if column.cell is Cell.STRING:
        array.validate(full=True)  # readers accept any bytes as UTF-8
    return array


def check_finite(columns: Sequence[Column], read: Sequence[ReadColumn]) -> None:
    """Raises BadBlock if a number is infinite."""
    for array, column in zip(columns, read, strict=True):
        values = array.values if isinstance(array, Lists) else array
        if pa.types.is_floating(column.type) and pc.any(pc.is_inf(values)).as_py():
            raise BadBlock(column.name)
