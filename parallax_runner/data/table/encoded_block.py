"""Rows as arrays of fixed width. The codes of a block refer to the block's own dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.arrow_buffers import numbers_of
from parallax_runner.data.table.local_dictionary import dtype_of_local_codes, numbered
from parallax_runner.data.table.read_columns import Column, Lists
from parallax_runner.data.table.stored_table import MISSING_INTEGER, Cell, RawColumn

DTYPE: dict[Cell, np.dtype] = {
    Cell.NUMBER: np.dtype(np.float32),
    Cell.INTEGER: np.dtype(np.int64),
    Cell.STRING: np.dtype(np.int32),
}


@dataclass(frozen=True)
class EncodedList:
    """The lists of some rows. `lengths` is int64 [rows]; `values` has the values of all lists, in order."""

    lengths: np.ndarray
    values: np.ndarray

    def where(self, chosen: np.ndarray) -> EncodedList:
        """Returns the lists of some rows. `chosen` is bool [rows]."""
        return EncodedList(self.lengths[chosen], self.values[np.repeat(chosen, self.lengths)])


@dataclass(frozen=True)
class EncodedBlock:
    """Some rows. `matrices` has one array [rows, columns] for each kind of cell. `dictionaries` has the strings of each
    string column. The string with the local code c is number c - 1; local codes are uint16 or int32."""

    rows: int
    matrices: Mapping[Cell, np.ndarray]
    lists: Mapping[str, EncodedList]
    dictionaries: Mapping[str, pa.Array]

    def where(self, chosen: np.ndarray) -> EncodedBlock:
        """Returns some rows. `chosen` is bool [rows]. The dictionaries stay as they are."""
        return EncodedBlock(
            rows=int(np.count_nonzero(chosen)),
            matrices={cell: matrix[chosen] for cell, matrix in self.matrices.items()},
            lists={name: values.where(chosen) for name, values in self.lists.items()},
            dictionaries=self.dictionaries,
        )


def encoded(arrays: Sequence[Column], columns: Sequence[RawColumn], rows: int) -> EncodedBlock:
    """Returns columns, which have this many rows, as one block."""
    dictionaries: dict[str, pa.Array] = {}
    lists = {}
    counts = _counts(columns)
    matrices = {cell: np.empty((rows, counts[cell]), DTYPE[cell]) for cell in (Cell.NUMBER, Cell.INTEGER)}
    # Column by column, because each column has a table of its own for its codes.
    matrices[Cell.STRING] = np.empty((rows, counts[Cell.STRING]), dtype_of_local_codes(rows), order="F")
    places = dict.fromkeys(Cell, 0)
    for array, column in zip(arrays, columns, strict=True):
        values = array.values if isinstance(array, Lists) else array
        cells = _cells(values, column, dictionaries)
        if isinstance(array, Lists):
            lists[column.name] = EncodedList(array.lengths, cells)
            continue
        matrices[column.cell][:, places[column.cell]] = cells
        places[column.cell] += 1
    return EncodedBlock(rows, matrices, lists, dictionaries)


def _counts(columns: Sequence[RawColumn]) -> dict[Cell, int]:
    return {cell: sum(one.cell is cell and not one.is_list for one in columns) for cell in Cell}


def _cells(values: pa.Array, column: RawColumn, dictionaries: dict[str, pa.Array]) -> np.ndarray:
    if column.cell is not Cell.STRING:
        return _filled(values, DTYPE[column.cell])
    codes, dictionaries[column.name] = numbered(values)
    return codes


def _filled(values: pa.Array, dtype: np.dtype) -> np.ndarray:
    if values.null_count:
        values = values.fill_null(_MISSING[dtype])
    return numbers_of(values, dtype)


def _scalar(data: np.ndarray, type_: pa.DataType) -> pa.Scalar:
    """Returns a value of pyarrow. `pa.scalar` would import pandas."""
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(data)])[0]


_MISSING = {
    DTYPE[Cell.NUMBER]: _scalar(np.array([np.nan], DTYPE[Cell.NUMBER]), pa.float32()),
    DTYPE[Cell.INTEGER]: _scalar(np.array([MISSING_INTEGER], DTYPE[Cell.INTEGER]), pa.int64()),
}
