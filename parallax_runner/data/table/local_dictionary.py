"""Numbers the strings of a column in one block."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.arrow_buffers import array_of_integers, numbers_of
from parallax_runner.data.table.fixed_width import FixedWidth, as_integers, bytes_of_integers

_INDEX = np.dtype(np.int32)
_EMPTY = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]


def numbered(words: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Returns local codes [strings], and their dictionary. String i of the dictionary has the code i + 1. A missing
    string has the code 0. An empty string has the code 0 too, or one of its own."""
    filled = words.fill_null(_EMPTY) if words.null_count else words
    integers = as_integers(filled)
    return _numbered_strings(filled) if integers is None else _numbered_integers(integers)


def dtype_of_local_codes(cells: int) -> np.dtype:
    """Returns a small dtype for the codes of this many cells."""
    return np.dtype(np.uint16 if cells < 2**16 else np.int32)


def _numbered_strings(words: pa.Array) -> tuple[np.ndarray, pa.Array]:
    coded = words.dictionary_encode()
    return _after_0(coded.indices, dtype_of_local_codes(len(words))), coded.dictionary


def _numbered_integers(words: FixedWidth) -> tuple[np.ndarray, pa.Array]:
    coded = array_of_integers(words.integers).dictionary_encode()
    codes = np.zeros(len(words.has_text), dtype=dtype_of_local_codes(len(words.has_text)))
    codes[words.has_text] = _after_0(coded.indices, codes.dtype)
    distinct = numbers_of(coded.dictionary, np.dtype(np.int64))
    offsets = np.arange(len(distinct) + 1, dtype=np.int32) * np.int32(words.width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bytes_of_integers(distinct, words.width))]
    return codes, pa.Array.from_buffers(pa.string(), len(distinct), buffers)


def _after_0(indices: pa.Array, dtype: np.dtype) -> np.ndarray:
    return np.add(numbers_of(indices, _INDEX), 1, dtype=dtype, casting="unsafe")
