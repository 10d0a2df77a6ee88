"""Writes arrays as a checkpoint and reads the checkpoint back, in a separate session that takes no threads from
training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.part_files import PART_BYTES, PartFiles, SliceReader, merge, session_beside_training
from parallax_runner.checkpoints.row_blocks import BLOCK_BYTES
from parallax_runner.checkpoints.shard_blocks import ShardBlocks
from parallax_runner.checkpoints.slices import Slice, slice_spec
from parallax_runner.errors import CheckpointError
from parallax_runner.files.literal_path import literal


class CheckpointWriter:
    """Writes values, given in the order of `slices`, under logical names.

    Variables that are larger than `block_bytes` and are split into shards are written in blocks of consecutive rows,
    so they are never brought together as a whole.
    """

    def __init__(self, slices: Sequence[Slice], block_bytes: int = BLOCK_BYTES) -> None:
        self._blocks = ShardBlocks(slices, block_bytes)
        self._all = tuple(slices)
        slices = [part for part in slices if part.name not in self.block_rows]
        self._shapes = {part.name: (part.dtype, part.full_shape) for part in slices}
        self._slices = tuple(slices)
        # TensorFlow cannot describe a slice of non-contiguous rows, so variables with such slices are written as a
        # whole.
        self._whole = {part.name for part in slices if part.step > 1}
        slices = self._written()
        graph = tf.Graph()
        with graph.as_default():
            self._prefix = tf.placeholder(tf.string, [])
            self._values = [tf.placeholder(part.dtype, part.shape) for part in slices]
            self._save = tf.raw_ops.SaveV2(
                prefix=self._prefix,
                tensor_names=[part.name for part in slices],
                shape_and_slices=[slice_spec(part.full_shape, part) for part in slices],
                tensors=self._values,
            )
            self._name = tf.placeholder(tf.string, [])
            self._restore = {
                dtype: tf.raw_ops.RestoreV2(
                    prefix=self._prefix, tensor_names=[self._name], shape_and_slices=[""], dtypes=[dtype]
                )[0]
                for dtype, _ in self._shapes.values()
            }
        self._session = session_beside_training(graph)
        self._reader = SliceReader()

    @property
    def block_rows(self) -> dict[str, int]:
        """The numbers of rows in a block, by the names of the variables that are written in blocks."""
        return self._blocks.block_rows

    def write(self, prefix: Path, values: Sequence[np.ndarray]) -> None:
        """Writes the checkpoint. Raises tf.errors.OpError if the files cannot be written."""
        kept = [value for part, value in zip(self._all, values, strict=True) if part.name not in self.block_rows]
        if not self.block_rows:
            self._write_kept(prefix, kept)
            return
        files = PartFiles(prefix.parent, f"{prefix.name}-part", PART_BYTES)
        for block, shards in self._blocks.slices():
            files.add(block, self._blocks.values(block, shards, values))
        files.flush()
        kept_parts = [prefix.with_name(f"{prefix.name}-kept")] if kept else []
        for part in kept_parts:
            self._write_kept(part, kept)
        merge([*kept_parts, *files.parts], prefix)

    def _write_kept(self, prefix: Path, values: Sequence[np.ndarray]) -> None:
        arrays = self._brought_together(values)
        with literal(prefix) as path:
            self._session.run(self._save, {self._prefix: path, **dict(zip(self._values, arrays, strict=True))})

    def _written(self) -> list[Slice]:
        kept = [part for part in self._slices if part.name not in self._whole]
        whole = {part.name: part for part in self._slices if part.name in self._whole}.values()
        return kept + [
            replace(part, offset=(0,) * len(part.full_shape), shape=part.full_shape, step=1) for part in whole
        ]

    def _brought_together(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the arrays for the slices that `_written` returns."""
        kept: list[np.ndarray] = []
        whole: dict[str, np.ndarray] = {}
        for part, value in zip(self._slices, values, strict=True):
            if part.name not in self._whole:
                kept.append(value)
                continue
            whole.setdefault(part.name, np.empty(part.full_shape, value.dtype))[part.where] = value
        return kept + list(whole.values())

    def read_back(self, prefix: Path) -> None:
        """Reads every variable, one at a time, or block by block. TensorFlow checks the CRC of each variable.

        Raises tf.errors.OpError if a variable is missing or damaged, and CheckpointError if a variable has a different
        shape.
        """
        for block, _ in self._blocks.slices():
            self._reader.read(prefix, block)
        for name, (dtype, shape) in self._shapes.items():
            with literal(prefix) as path:
                value = self._session.run(self._restore[dtype], {self._prefix: path, self._name: name})
            if value.shape != shape:
                raise CheckpointError(
                    f"checkpoint {prefix}: «{name}» was written with shape {list(shape)} but read back "
                    f"with shape {list(value.shape)}"
                )


def not_finite(slices: Sequence[Slice], values: Sequence[np.ndarray], names: frozenset[str]) -> str | None:
    """Returns the name of the first variable in `names` that contains a NaN or infinite value, or None if there is no
    such variable."""
    for part, value in zip(slices, values, strict=True):
        is_number = part.dtype.is_floating or part.dtype.is_complex
        if part.name in names and is_number and not np.isfinite(value).all():
            return part.name
    return None
