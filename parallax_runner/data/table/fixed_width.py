"""Strings of one length as integers: pyarrow numbers integers in less time and memory than strings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.arrow_buffers import offsets_and_data

MOST_BYTES = 8  # of an integer


@dataclass(frozen=True)
class FixedWidth:
    """Strings that are empty or have `width` bytes. `has_text` is bool [strings]. `integers`, int64, has the bytes of
    each string that is not empty, and zeros behind them. The width is 0 if all strings are empty."""

    width: int
    has_text: np.ndarray
    integers: np.ndarray


def as_integers(words: pa.Array) -> FixedWidth | None:
    """Returns strings of any type of Arrow, of which none is missing, as integers. Returns None if they differ in
    length or are too long."""
    offsets, data = offsets_and_data(words)
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=0))
    if width > MOST_BYTES:
        return None
    has_text = lengths != 0
    count = int(np.count_nonzero(has_text))
    if count * width != len(data):
        return None
    return FixedWidth(width, has_text, _integers(data, width, count))


def _integers(data: np.ndarray, width: int, count: int) -> np.ndarray:
    if width == MOST_BYTES:
        whole = data.view(np.int64)
        return whole if whole.flags.aligned else whole.copy()
    padded = np.zeros((count, MOST_BYTES), dtype=np.uint8)
    padded[:, :width] = data.reshape(count, width)
    return padded.reshape(-1).view(np.int64)


def bytes_of_integers(integers: np.ndarray, width: int) -> np.ndarray:
    """Returns the bytes of the strings that `as_integers` has turned into integers, uint8, one string behind the
    other."""
    padded = np.ascontiguousarray(integers).view(np.uint8).reshape(len(integers), MOST_BYTES)
    return np.ascontiguousarray(padded[:, :width]).reshape(-1)
