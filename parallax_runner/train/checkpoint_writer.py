"""Writes arrays as a checkpoint and reads it back, in a session of its own that takes no thread from training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.errors import CheckpointError
from parallax_runner.train.checkpoint import Slice, slice_spec


class CheckpointWriter:
    """Writes values of `slices`, in their order, under logical names."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._shapes = {part.name: (part.dtype, part.full_shape) for part in slices}
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
        # Below zero: ops run in the thread that calls, while TensorFlow's other threads train.
        config = tf.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
        self._session = tf.Session(graph=graph, config=config)

    def write(self, prefix: Path, values: Sequence[np.ndarray]) -> None:
        """Raises tf.errors.OpError where the files cannot be written."""
        self._session.run(self._save, {self._prefix: str(prefix), **dict(zip(self._values, values, strict=True))})

    def read_back(self, prefix: Path) -> None:
        """Reads every variable, one at a time; TensorFlow compares the CRC of each.

        Raises tf.errors.OpError where one is missing or damaged, CheckpointError where it has another shape.
        """
        for name, (dtype, shape) in self._shapes.items():
            value = self._session.run(self._restore[dtype], {self._prefix: str(prefix), self._name: name})
            if value.shape != shape:
                raise CheckpointError(
                    f"checkpoint {prefix}: «{name}» was written in shape {list(shape)} and reads as {list(value.shape)}"
                )


def not_finite(slices: Sequence[Slice], values: Sequence[np.ndarray], names: frozenset[str]) -> str | None:
    """The first variable of `names` with a value that is NaN or infinite."""
    for part, value in zip(slices, values, strict=True):
        is_number = part.dtype.is_floating or part.dtype.is_complex
        if part.name in names and is_number and not np.isfinite(value).all():
            return part.name
    return None
