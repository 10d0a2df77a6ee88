"""Arrays of Arrow as arrays of NumPy, and back, without copies. pyarrow's own methods would import pandas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def numbers_of(values: pa.Array, dtype: np.dtype) -> np.ndarray:
    """Returns numbers of which none is missing, without a copy."""
    _, buffer = values.buffers()
    if buffer is None or len(values) == 0:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype)[values.offset : values.offset + len(values)]


def array_of_integers(integers: np.ndarray) -> pa.Array:
    """Returns int64 numbers as an array of Arrow."""
    return pa.Array.from_buffers(pa.int64(), len(integers), [None, pa.py_buffer(integers)])


def offsets_and_data(words: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns strings without a copy of their bytes, uint8. String i has the bytes from offset i to offset i + 1. The
    offsets are int32 or int64 [strings + 1], from 0 on."""
    is_large = pa.types.is_large_string(words.type) or pa.types.is_large_binary(words.type)
    dtype = np.dtype(np.int64 if is_large else np.int32)
    _, offsets_buffer, data_buffer = words.buffers()
    if len(words) == 0:
        return np.zeros(1, dtype=dtype), np.empty(0, dtype=np.uint8)
    start_bytes = words.offset * dtype.itemsize
    offsets = np.frombuffer(offsets_buffer, dtype, count=len(words) + 1, offset=start_bytes)
    first, end = int(offsets[0]), int(offsets[-1])
    if first == end:  # pyarrow may leave out the buffer
        return offsets - first, np.empty(0, dtype=np.uint8)
    data = np.frombuffer(data_buffer, np.uint8, count=end - first, offset=first)
    return offsets - first if first else offsets, data
