"""Writes arrays as a checkpoint and reads the checkpoint back, in a separate session that takes no threads from
training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.slices import Slice, slice_spec
from parallax_runner.errors import CheckpointError
from parallax_runner.files.literal_path import literal


class CheckpointWriter:
    """Writes values, given in the order of `slices`, under logical names."""

    def __init__(self, slices: Sequence[Slice]) -> None:
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
        # With a negative number of threads, ops run in the calling thread, and TensorFlow's other threads stay free for
        # training. Without the limit, the session would use every GPU, also those of other ranks.
        config = tf.ConfigProto(
            inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1, device_count={"GPU": 0}
        )
        self._session = tf.Session(graph=graph, config=config)

    def write(self, prefix: Path, values: Sequence[np.ndarray]) -> None:
        """Writes the checkpoint. Raises tf.errors.OpError if the files cannot be written."""
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
        """Reads every variable, one at a time. TensorFlow checks the CRC of each variable.

        Raises tf.errors.OpError if a variable is missing or damaged, and CheckpointError if a variable has a different
        shape.
        """
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
