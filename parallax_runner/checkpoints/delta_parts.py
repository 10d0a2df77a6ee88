"""Adds what ranks tell to the parts of a delta, and reads it again.

A delta has two tensors for each variable that has changed in part: the values under the variable's name, and their
places under this name with `PLACES`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.delta_layout import Chunk, Layout
from parallax_runner.checkpoints.delta_ops import Changes
from parallax_runner.checkpoints.joint_files import Trouble
from parallax_runner.checkpoints.part_files import SLICED_DTYPES, PartFiles
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.writer import not_finite

PLACES = ":places"
_PLACE = np.dtype(np.int64)


@dataclass(frozen=True)
class ChunkValues:
    """The places of a chunk (int64 [n]) and what is there ([n, ...])."""

    places: np.ndarray
    values: np.ndarray

    def message(self) -> np.ndarray:
        """Returns both as bytes (uint8)."""
        return np.concatenate([_bytes_of(self.places), _bytes_of(self.values)])

    @classmethod
    def of_message(cls, message: np.ndarray, chunk: Chunk, changes: Changes) -> ChunkValues:
        """Returns the chunk that has come in a message, which may end with some more bytes."""
        end_of_places = chunk.count * _PLACE.itemsize
        end = end_of_places + chunk.count * changes.value_bytes
        values = message[end_of_places:end].view(changes.variable.dtype.as_numpy_dtype)
        return cls(message[:end_of_places].view(_PLACE), values.reshape(chunk.count, *changes.shape))


class DeltaParts:
    """The parts that one rank writes. `changes` has the variables by name. `trouble` takes what goes wrong, also if a
    value of a variable in `check_finite` is not finite."""

    def __init__(
        self,
        files: PartFiles,
        layout: Layout,
        changes: Mapping[str, Changes],
        check_finite: frozenset[str],
        trouble: Trouble,
    ) -> None:
        self._files, self._layout, self._changes = files, layout, changes
        self._check_finite, self._trouble = check_finite, trouble

    def add(self, rank: int, chunk: Chunk, found: ChunkValues) -> None:
        """Adds a chunk of a rank."""
        self._trouble.attempt(functools.partial(self._add, self._layout.name_of(rank, chunk), chunk.begin, found))

    def _add(self, name: str, begin: int, found: ChunkValues) -> None:
        dtype, total = self._changes[name].variable.dtype, self._layout.totals[name]
        values = _part_of(name, dtype, total, begin, found.values)
        self._trouble.not_finite = not_finite([values], [found.values], self._check_finite)
        if self._trouble.not_finite is not None:
            return
        stored = _as_stored(found.values, dtype)
        stored_dtype = dtype if dtype in SLICED_DTYPES else tf.uint8
        self._files.add(_part_of(name, stored_dtype, total, begin, stored), stored)
        self._files.add(_part_of(name + PLACES, tf.int64, total, begin, found.places), found.places)


def as_read(stored: np.ndarray, dtype: tf.DType, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the values of a delta's tensor with the dtype of their variable. Each has the shape `shape`."""
    if dtype in SLICED_DTYPES:
        return stored
    return stored.reshape(-1).view(dtype.as_numpy_dtype).reshape(len(stored), *shape)


def _as_stored(values: np.ndarray, dtype: tf.DType) -> np.ndarray:
    """Returns values as a delta contains them: as bytes (uint8 [n, bytes]) if TensorFlow cannot read slices of their
    dtype."""
    return values if dtype in SLICED_DTYPES else _bytes_of(values).reshape(len(values), -1)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _part_of(name: str, dtype: tf.DType, total: int, begin: int, values: np.ndarray) -> Slice:
    return Slice(
        name,
        dtype,
        full_shape=(total, *values.shape[1:]),
        offset=(begin, *[0] * (values.ndim - 1)),
        shape=values.shape,
    )
