"""Makes a checkpoint from a checkpoint and its delta."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import read_sidecar
from parallax_runner.checkpoints.delta_files import Delta, values_of
from parallax_runner.checkpoints.delta_parts import PLACES, as_read
from parallax_runner.checkpoints.part_files import PartFiles, SliceReader, merge
from parallax_runner.checkpoints.publish import begin, flush, publish
from parallax_runner.checkpoints.save_sizes import LEAST_PART_BYTES, MOST_PARTS
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.errors import reason_in
from parallax_runner.files.literal_path import literal


@dataclasses.dataclass(frozen=True)
class _Changed:
    """The rows of a variable with changed places, in ascending order (int64 [n]), and their values. If `is_elements`,
    the places are those of elements."""

    places: np.ndarray
    values: np.ndarray
    is_elements: bool

    def apply(self, value: np.ndarray, part: Slice) -> None:
        """Writes what has changed into the values of consecutive rows."""
        columns = math.prod(part.full_shape[1:]) if self.is_elements else 1
        first, count = part.offset[0] * columns, part.shape[0] * columns
        begin, end = np.searchsorted(self.places, [first, first + count])
        target = value.reshape(-1) if self.is_elements else value
        target[self.places[begin:end] - first] = self.values[begin:end]


class _Source:
    """A checkpoint and its delta."""

    def __init__(self, base: Path, delta: Delta) -> None:
        self.base, self.delta, self._prefix = base, delta, values_of(base, delta)
        self.sidecar, self._reader = read_sidecar(base), SliceReader()
        with literal(base) as path:
            of_base = tf.train.load_checkpoint(path)
            self.shapes = {name: tuple(shape) for name, shape in of_base.get_variable_to_shape_map().items()}
            self.dtypes = of_base.get_variable_to_dtype_map()
        with literal(self._prefix) as path:
            self._of_delta = tf.train.load_checkpoint(path)
        self._in_delta = self._of_delta.get_variable_to_shape_map().keys()

    @property
    def size_bytes(self) -> int:
        """The size of all variables."""
        return sum(math.prod(shape) * self.dtypes[name].size for name, shape in self.shapes.items())

    def values(self, name: str) -> Iterator[tuple[Slice, np.ndarray]]:
        """Yields the values of a variable, in the blocks in which the checkpoint contains it."""
        shape, dtype = self.shapes[name], self.dtypes[name]
        whole = Slice(name, dtype, shape, (0,) * len(shape), shape)
        if name in self._in_delta and name + PLACES not in self._in_delta:
            yield whole, self._reader.read(self._prefix, whole)
            return
        changed = self._changed(name) if name in self._in_delta else None
        for part in _blocks(whole, self.sidecar.block_rows.get(name)):
            value = self._reader.read(self.base, part)
            if changed is not None:
                value = np.array(value)  # what a session returns may not be writable
                changed.apply(value, part)
            yield part, value

    def _changed(self, name: str) -> _Changed:
        places = self._of_delta.get_tensor(name + PLACES)
        is_elements = name in self.delta.elements
        shape = () if is_elements else self.shapes[name][1:]
        values = as_read(self._of_delta.get_tensor(name), self.dtypes[name], shape)
        order = np.argsort(places)
        return _Changed(places[order], values[order], is_elements)


def with_delta(base: Path, delta: Delta, folder: Path) -> Path:
    """Writes a checkpoint with the values of the delta where it has any, and otherwise those of the checkpoint `base`,
    to a new folder. Returns its prefix. Its slots are those of `base`.

    The changes of one variable are in memory at a time, and otherwise a block and a part of the new checkpoint. Raises
    OSError if the files cannot be read or written, and CheckpointError if the sidecar is damaged.
    """
    try:
        return _with_delta(base, delta, folder)
    except tf.errors.OpError as error:
        raise OSError(reason_in(str(error.message))) from error


def _with_delta(base: Path, delta: Delta, folder: Path) -> Path:
    source = _Source(base, delta)
    written = begin(folder, delta.step)
    files = PartFiles(written.parent, "part", max(LEAST_PART_BYTES, source.size_bytes // MOST_PARTS))
    for name in sorted(source.shapes):
        for part, value in source.values(name):
            files.add(part, value)
    files.flush()
    merge(files.parts, written)
    flush(written)
    sidecar = dataclasses.replace(source.sidecar, step=delta.step, examples=delta.examples, epoch=None, files={})
    return publish(written, folder, sidecar)


def _blocks(whole: Slice, block_rows: int | None) -> Iterator[Slice]:
    """Yields the parts in which a variable is read. TensorFlow reads each block as a whole."""
    if block_rows is None or not whole.shape:
        yield whole
        return
    for first in range(0, whole.shape[0], block_rows):
        yield whole.rows(first, min(block_rows, whole.shape[0] - first))
