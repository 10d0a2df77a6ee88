"""Aggregates raw gradients between the two halves of a step, in NumPy.

Sums are taken in float64 (complex128 for complex gradients), in rank order, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mean(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean of a dense gradient over the ranks, given one array for each rank.

    All arrays have the shape and dtype of the result. Raises ValueError if shapes differ, and never broadcasts.
    """
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        raise ValueError(f"the shapes of a dense gradient differ between ranks: {sorted(shapes)}")
    total = np.zeros(arrays[0].shape, _wide(arrays[0].dtype))
    for array in arrays:
        total += array.astype(total.dtype)
    return np.asarray(total / len(arrays)).astype(arrays[0].dtype)


def merge(pieces: Sequence[tuple[np.ndarray, np.ndarray]], *, average: bool) -> tuple[np.ndarray, np.ndarray]:
    """Merges the sparse gradients of the ranks, each as (ids [n], rows [n, ...]).

    Returns (ids [u], rows [u, ...]) in the dtypes of the first piece. Ids are unique and ascending. Rows of equal ids,
    on the same or different ranks, are summed, and divided by the number of ranks if `average`.
    """
    ids = np.concatenate([piece_ids for piece_ids, _ in pieces])
    rows = np.concatenate([piece_rows for _, piece_rows in pieces])
    unique, positions = np.unique(ids, return_inverse=True)
    total = np.zeros((len(unique), *rows.shape[1:]), _wide(rows.dtype))
    np.add.at(total, positions.reshape(-1), rows.astype(total.dtype))
    if average:
        total /= len(pieces)
    return unique.astype(pieces[0][0].dtype), total.astype(pieces[0][1].dtype)


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
