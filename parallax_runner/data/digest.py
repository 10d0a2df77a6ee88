"""Computes digests of arrays, and reads only a part of large arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from parallax_runner.data.strings import StoredStrings

# Arrays up to this size are read entirely. Of a larger array, evenly spaced blocks with this size in total are read.
READ_BYTES = 2**26
BLOCK_BYTES = 2**20
DIGEST_CHARS = 32


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns a digest of arrays with their names, shapes and dtypes.

    Of an array above `READ_BYTES`, reads only evenly spaced blocks.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        given = arrays[name]
        array = given if isinstance(given, StoredStrings) else np.asarray(given)
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        for block in _blocks(array):
            digest.update(bytes_of(block))
    return digest.hexdigest()[:DIGEST_CHARS]


def _blocks(array: np.ndarray | StoredStrings) -> Iterator[np.ndarray]:
    """Yields the rows of an array in blocks of about `BLOCK_BYTES`. A string counts as a pointer."""
    size_bytes = array.size * array.dtype.itemsize
    if array.ndim == 0 or size_bytes <= BLOCK_BYTES:
        yield array[:] if isinstance(array, StoredStrings) else array
        return
    row_bytes = max(1, size_bytes // len(array))
    rows = max(1, BLOCK_BYTES // row_bytes)
    count = -(-len(array) // rows)
    most = max(2, READ_BYTES // (rows * row_bytes))
    chosen = range(count) if count <= most else [number * (count - 1) // (most - 1) for number in range(most)]
    for number in chosen:
        yield array[number * rows : (number + 1) * rows]


def bytes_of(block: np.ndarray) -> bytes:
    """Returns the values of an array as bytes."""
    # The bytes of an array of objects are addresses.
    return repr(block.tolist()).encode() if block.dtype.kind == "O" else block.tobytes()
