"""Arrays of strings: their form in memory, and files that other processes map into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.errors import DataError

# The dtype of a feature of strings. Its arrays contain objects of type bytes, in UTF-8 if they were text.
STRING = "string"
# Kinds of NumPy dtypes whose values can be strings: objects, bytes, text, and text of variable width.
KINDS = "OSUT"


def dtype_name(array: Any) -> str:
    """Returns the dtype of a feature for an array of it."""
    return STRING if array.dtype.kind in KINDS else str(array.dtype.name)


def as_bytes(array: np.ndarray, what: str) -> np.ndarray:
    """Returns an array of strings as an array of bytes objects with the same shape.

    Raises DataError if an element is not a string, or is text that UTF-8 cannot represent. `what` names the array.
    """
    if array.dtype.kind == "S":
        return array.astype(object)
    found = np.empty(array.size, dtype=object)
    try:
        found[:] = [_as_bytes(one, what) for one in array.ravel()]
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what}: expected strings that UTF-8 can represent, found {str(error.object)!r}: {error.reason}"
        ) from error
    return found.reshape(array.shape)


def _as_bytes(one: Any, what: str) -> bytes:
    if isinstance(one, bytes):
        return bytes(one)
    if isinstance(one, str):
        return one.encode()
    raise DataError(
        f"{what}: expected numbers or strings, found the object {one!r} of type {type(one).__name__} in an array: "
        "convert all elements to numbers or to strings; replace missing values, for example by ''"
    )


class StoredStrings:
    """A memory-mapped array of strings, whose rows are read as arrays of bytes objects.

    `content` (uint8) contains all strings one after the other, and string i is `content[offsets[i]:offsets[i + 1]]`.
    """

    dtype = np.dtype(object)

    def __init__(self, offsets: np.ndarray, content: np.ndarray, shape: tuple[int, ...]) -> None:
        self._offsets, self._content, self.shape = offsets, content, shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of strings."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Returns the given rows, a slice or an array of numbers."""
        numbers = np.arange(len(self))[rows]
        in_row = int(np.prod(self.shape[1:], dtype=np.int64))
        flat = (numbers[:, None] * in_row + np.arange(in_row)).ravel()
        bounds = zip(self._offsets[flat].tolist(), self._offsets[flat + 1].tolist(), strict=True)
        found = np.empty(len(flat), dtype=object)
        found[:] = [self._content[start:stop].tobytes() for start, stop in bounds]
        return found.reshape(len(numbers), *self.shape[1:])


def stored_bytes(array: np.ndarray) -> int:
    """Returns the size of the files that `save` writes."""
    return sum(map(len, array.ravel())) + 8 * (array.size + 1)


def save(array: np.ndarray, path: Path) -> None:
    """Writes an array of bytes objects to two files whose names begin with `path`. No object is pickled."""
    strings = array.ravel().tolist()
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum([len(one) for one in strings], out=offsets[1:])
    np.save(f"{path}.offsets.npy", offsets, allow_pickle=False)
    np.save(f"{path}.content.npy", np.frombuffer(b"".join(strings), np.uint8), allow_pickle=False)


def load(path: Path, shape: tuple[int, ...]) -> StoredStrings:
    """Maps the files that `save` has written into memory. Raises OSError or ValueError if they cannot be read."""
    offsets = np.load(f"{path}.offsets.npy", mmap_mode="r", allow_pickle=False)
    content_path = f"{path}.content.npy"
    # An empty file cannot be mapped.
    content = np.load(content_path, mmap_mode="r" if offsets[-1] else None, allow_pickle=False)
    return StoredStrings(offsets, content, shape)
