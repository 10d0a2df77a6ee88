"""A file of NumPy that grows by rows, for arrays that do not fit into memory."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
from numpy.lib import format as npy


class ArrayFile:
    """Appends rows to a new .npy file. `row_shape` is the shape of a row, () for numbers. Raises OSError if the file
    cannot be written."""

    def __init__(self, path: Path, dtype: np.dtype, row_shape: tuple[int, ...] = ()) -> None:
        self.path = path
        self.rows = 0
        self._dtype = dtype
        self.row_shape = row_shape
        self.size_bytes = 0
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 (until `close`)
        self._header_bytes = self._write_header()

    def append(self, rows: np.ndarray) -> None:
        """Appends an array [any number, *row_shape]."""
        whole = np.ascontiguousarray(rows, dtype=self._dtype)
        view = memoryview(whole.reshape(-1).view(np.uint8).data)
        while len(view) > 0:
            view = view[self._file.write(view) :]
        self.rows += len(rows)
        self.size_bytes += whole.nbytes

    def _write_header(self) -> int:
        npy.write_array_header_1_0(
            self._file,
            {
                "shape": (self.rows, *self.row_shape),
                "fortran_order": False,
                "descr": npy.dtype_to_descr(self._dtype),
            },
        )
        return self._file.tell()

    def close(self) -> None:
        """Writes the number of rows and closes the file."""
        if self._file.closed:
            return
        self._file.seek(0)
        # NumPy leaves room in the header for any number of rows.
        if self._write_header() != self._header_bytes:
            raise OSError(f"{self.path}: the header of {self.rows} rows needs more room")
        self._file.close()

    def __enter__(self) -> Self:
        """Returns this file."""
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Closes the file."""
        self.close()


class ScratchArray:
    """The array of a file, mapped into memory. The pages that were read can be given back, so that they do not count as
    memory of this process."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.array = np.frombuffer(self._map, dtype, offset=file.tell()).reshape(shape)

    def give_back(self) -> None:
        """Gives all pages back. If they are needed again, they are read again."""
        self._map.madvise(mmap.MADV_DONTNEED)


def mapped(path: Path, *, mode: Literal["r", "r+"] = "r") -> np.ndarray:
    """Returns the array of a file, mapped into memory, and not mapped if it is empty. Raises OSError or ValueError if
    the file is damaged."""
    with open(path, "rb") as file:
        npy.read_magic(file)
        shape, _, _ = npy.read_array_header_1_0(file)
    array: np.ndarray = np.load(path) if 0 in shape else np.load(path, mmap_mode=mode)
    return array
