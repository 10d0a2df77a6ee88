"""Keeps codes of the blocks' own dictionaries in a file, until the strings of all blocks have been numbered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from parallax_runner.data.table.array_file import ArrayFile, ScratchArray

_WAITING_SPANS = 8


class Tables(Protocol):
    """The final codes of the blocks' own codes."""

    def of(self, name: str, block: int) -> np.ndarray:
        """Returns the final codes of a column in a block: int32 [codes of the block]."""

    def give_back(self) -> None:
        """Gives the pages back that have been read."""


@dataclass(frozen=True)
class _Span:
    """The rows of one block: where they are in the file."""

    block: int
    rows: int
    start_bytes: int
    dtype: np.dtype


class LocalCodes:
    """Codes of the string columns `names`, whose final codes go to `final`."""

    def __init__(self, path: Path, names: tuple[str, ...], final: ArrayFile) -> None:
        self.final_bytes = 0
        self._path = path
        self._names = names
        self._final = final
        self._file = ArrayFile(path, np.dtype(np.uint8))
        self._spans: list[_Span] = []

    def append(self, codes: np.ndarray, block: int) -> None:
        """Appends the local codes of some rows of a block: [rows, names]."""
        self._spans.append(_Span(block, len(codes), self._file.rows, codes.dtype))
        self.final_bytes += codes.size * np.dtype(np.int32).itemsize
        self._file.append(np.ascontiguousarray(codes.T).reshape(-1).view(np.uint8))

    def close(self) -> None:
        """Closes the file with the local codes."""
        self._file.close()

    def finish(self, tables: Tables, pool: Executor) -> None:
        """Appends the final codes to their file."""
        self.close()
        local = ScratchArray(self._path)
        for first in range(0, len(self._spans), _WAITING_SPANS):
            spans = self._spans[first : first + _WAITING_SPANS]
            for codes in pool.map(lambda span: self._final_codes(local.array, span, tables.of), spans):
                self._final.append(codes)
            local.give_back()
            tables.give_back()

    def _final_codes(self, local: np.ndarray, span: _Span, table_of: Callable[[str, int], np.ndarray]) -> np.ndarray:
        size_bytes = span.rows * len(self._names) * span.dtype.itemsize
        columns = local[span.start_bytes : span.start_bytes + size_bytes].view(span.dtype)
        columns = columns.reshape(len(self._names), span.rows)
        codes = np.empty((span.rows, len(self._names)), dtype=np.int32)
        for number, name in enumerate(self._names):
            codes[:, number] = table_of(name, span.block)[columns[number]]
        return codes.reshape(span.rows, *self._final.row_shape)
