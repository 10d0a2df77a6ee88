"""Converts data that Keras accepts as arrays to NumPy arrays, and rejects data that cannot be divided among the workers
of `fit`."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np

from parallax_runner.data.strings import KINDS, as_bytes
from parallax_runner.errors import ConfigError

# Kinds of NumPy dtypes that contain times.
TIMES = "Mm"
AS_DATASET = "pass a tf.data.Dataset, such as tf.data.Dataset.from_tensor_slices((x, y)).batch(32)"


def readable(given: Any, what: str) -> Any:
    """Returns `given`, a nest of arrays, with NumPy arrays in place of tables and tensors. Sparse matrices of SciPy
    become matrices in CSR format. `what` is the name of the argument.

    Raises ConfigError for data that cannot be divided among several workers.
    """
    import keras

    if inspect.isgenerator(given):
        raise ConfigError(f"{what} (fit): a generator yields whole batches: pass it as x, and let it yield {what} too")
    return keras.tree.map_structure(lambda leaf: _array(leaf, what), given)


def _array(leaf: Any, what: str) -> Any:
    # Numbers and strings in a list, which becomes an array.
    if leaf is None or isinstance(leaf, bool | int | float | str | bytes):
        return leaf
    kind = f"{type(leaf).__module__.partition('.')[0]}.{type(leaf).__name__}"
    if is_scipy(leaf):
        return leaf.tocsr()
    if _is_sparse(leaf):
        raise ConfigError(f"{what} (fit): {kind} is ragged or sparse, and arrays must be dense; {AS_DATASET}")
    if not hasattr(leaf, "__array__"):
        raise ConfigError(f"{what} (fit): expected a tf.data.Dataset or arrays, found {kind}")
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:  # such as a tensor on a GPU
        raise ConfigError(f"{what} (fit): {kind} cannot be read as an array: {error}; pass a NumPy array") from error
    array = _numbers_or_strings(array, kind, what)
    pandas = sys.modules.get("pandas")
    # Like Keras, turns a Series into a column.
    return array[:, None] if pandas is not None and isinstance(leaf, pandas.Series) else array


def _numbers_or_strings(array: np.ndarray, kind: str, what: str) -> np.ndarray:
    """Returns an array of numbers, or of bytes objects. `kind` is the type that the array had."""
    if array.dtype.kind in TIMES:
        raise ConfigError(
            f"{what} (fit): {kind} has the dtype {array.dtype}, expected numbers or strings; convert times to numbers "
            "beforehand"
        )
    return as_bytes(array, f"{what} (fit): {kind}") if array.dtype.kind in KINDS else array


def is_scipy(leaf: Any) -> bool:
    """Returns whether `leaf` is a sparse matrix of SciPy."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(leaf))


def _is_sparse(leaf: Any) -> bool:
    import tensorflow as tf

    return isinstance(leaf, tf.RaggedTensor | tf.SparseTensor)
