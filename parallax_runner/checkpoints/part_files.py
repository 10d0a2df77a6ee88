"""Writes a checkpoint in parts, merges the parts, and reads values back, without the session that trains.

A part is a checkpoint of TensorFlow that has some slices of some variables. Several processes can write parts at the
same time. After `merge`, TensorFlow reads the parts as one checkpoint with whole variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.slices import Slice, slice_spec
from parallax_runner.files.literal_path import literal

# Parts are not smaller, so that a checkpoint does not have many files.
PART_BYTES = 64 << 20
# TensorFlow writes variables of other dtypes in slices, but cannot read these slices.
SLICED_DTYPES = frozenset(
    [
        *(tf.float32, tf.float64, tf.bfloat16, tf.bool, tf.complex64, tf.complex128),
        *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8),
    ]
)


def session_beside_training(graph: tf.Graph) -> tf.Session:
    """Returns a session that takes no threads and no GPU from training.

    With a negative number of threads, ops run in the calling thread. Without the limit, the session would use every
    GPU, also those of other ranks.
    """
    config = tf.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1, device_count={"GPU": 0})
    return tf.Session(graph=graph, config=config)


def write_slices(prefix: Path, slices: Sequence[Slice], values: Sequence[np.ndarray]) -> None:
    """Writes the values of slices as a checkpoint, or as a part of one. Raises tf.errors.OpError if the files cannot be
    written."""
    graph = tf.Graph()
    with graph.as_default():
        placeholders = [tf.placeholder(part.dtype, part.shape) for part in slices]
        with literal(prefix) as path, session_beside_training(graph) as session:
            save = tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=[part.name for part in slices],
                shape_and_slices=[slice_spec(part.full_shape, part) for part in slices],
                tensors=placeholders,
            )
            session.run(save, dict(zip(placeholders, values, strict=True)))


def merge(parts: Sequence[Path], prefix: Path) -> None:
    """Merges parts into the checkpoint `prefix`, and removes the parts. All are in one folder. The values of part k are
    then in the file «data-k-of-n». Raises tf.errors.OpError if a part is missing, or if two parts have the same
    values."""
    graph = tf.Graph()
    with graph.as_default(), literal(prefix) as path, session_beside_training(graph) as session:
        folder = Path(path).parent
        merged = tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[str(folder / part.name) for part in parts],
            destination_prefix=path,
            delete_old_dirs=False,
        )
        session.run(merged)


def data_ending(number: int, count: int) -> str:
    """Returns the ending of the name of the file with the values of part `number` of `count` parts."""
    return f"data-{number:05d}-of-{count:05d}"


class PartFiles:
    """Writes slices to one part after the other. A part has slices of at least `part_bytes` bytes, except the last.

    The parts are in `folder`, and their names begin with `name`.
    """

    def __init__(self, folder: Path, name: str, part_bytes: int) -> None:
        self.parts: list[Path] = []
        self.slices: list[list[Slice]] = []
        self._folder, self._name, self._part_bytes = folder, name, part_bytes
        self._waiting: list[tuple[Slice, np.ndarray]] = []

    def add(self, part: Slice, value: np.ndarray) -> None:
        """Adds a slice. Raises tf.errors.OpError if a part cannot be written."""
        self._waiting.append((part, value))
        if sum(waiting.nbytes for _, waiting in self._waiting) >= self._part_bytes:
            self.flush()

    def flush(self) -> None:
        """Writes the slices that no part has yet."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        prefix = self._folder / f"{self._name}-{len(self.parts):05d}"
        slices, values = zip(*waiting, strict=True)
        write_slices(prefix, slices, values)
        self.parts.append(prefix)
        self.slices.append(list(slices))


class SliceReader:
    """Reads slices of variables from checkpoints."""

    def __init__(self) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._prefix = tf.placeholder(tf.string, [])
            self._name = tf.placeholder(tf.string, [])
            self._spec = tf.placeholder(tf.string, [])
        self._session = session_beside_training(self._graph)
        self._reads: dict[tf.DType, tf.Tensor] = {}

    def read(self, prefix: Path, part: Slice) -> np.ndarray:
        """Returns the values of a slice. TensorFlow checks the CRC of each slice that was written and that this slice
        overlaps. Raises tf.errors.OpError if values are missing or damaged."""
        spec = slice_spec(part.full_shape, part)
        with literal(prefix) as path:
            feeds = {self._prefix: path, self._name: part.name, self._spec: spec}
            value: np.ndarray = self._session.run(self._read(part.dtype), feeds)
        return value

    def _read(self, dtype: tf.DType) -> tf.Tensor:
        if dtype not in self._reads:
            with self._graph.as_default():
                (self._reads[dtype],) = tf.raw_ops.RestoreV2(
                    prefix=self._prefix, tensor_names=[self._name], shape_and_slices=[self._spec], dtypes=[dtype]
                )
        return self._reads[dtype]
