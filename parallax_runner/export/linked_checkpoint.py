"""Makes the files of a checkpoint the variables of a SavedModel, so that no process reads or writes the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import files_of
from parallax_runner.files.link_or_copy import link_or_copy
from parallax_runner.graph.single_device_graph import Variable

# The C library asks the kernel for all memory of more than this size, so it is zero, and does not exist before it is
# used.
MOST_READ_BYTES = 32 << 20


class LinkedCheckpoint(tf.train.Saver):
    """A Saver that «saves» by hard links to, or copies of, the files of the checkpoint `prefix`.

    `made` has TensorFlow's variable for each of `variables`. The initial values of large ones are `untouched_zeros`.
    """

    def __init__(self, made: Sequence[Any], variables: Sequence[Variable], prefix: Path) -> None:
        super().__init__(list(made))
        self._pairs = list(zip(made, variables, strict=True))
        self._prefix = prefix

    def restore(self, session: tf.Session, save_path: str) -> None:
        """Gives small variables their values, and large ones zeros, because the outputs are only tried. Raises
        tf.errors.OpError if the checkpoint cannot be read."""
        reader = tf.train.load_checkpoint(save_path)
        for made, variable in self._pairs:
            value = {} if is_large(variable) else {made.initial_value: _value(reader, variable)}
            session.run(made.initializer, value)

    def save(self, _: tf.Session, save_path: str, **__: Any) -> str:
        """Links or copies the files of the checkpoint to `save_path`. Raises OSError."""
        for file in files_of(self._prefix):
            ending = file.name.removeprefix(self._prefix.name)
            link_or_copy(file, f"{save_path}{ending}")
        return save_path


def is_large(variable: Variable) -> bool:
    """Returns whether a variable is not read while the outputs are tried."""
    return size_bytes_of(variable) > MOST_READ_BYTES


def size_bytes_of(variable: Variable) -> int:
    """Returns the bytes of a variable's values."""
    return math.prod(variable.shape) * int(tf.as_dtype(variable.dtype).size)


def untouched_zeros(variable: Variable, name: str) -> tf.Tensor:
    """Returns the values of a large variable while the outputs are tried. They need memory only where they are used."""
    return tf.raw_ops.Empty(shape=variable.shape, dtype=tf.as_dtype(variable.dtype), init=False, name=name)


def _value(reader: Any, variable: Variable) -> np.ndarray:
    whole: np.ndarray = reader.get_tensor(variable.full_name)
    ends = [begin + size for begin, size in zip(variable.offset, variable.shape, strict=True)]
    return whole[tuple(slice(begin, end) for begin, end in zip(variable.offset, ends, strict=True))]
