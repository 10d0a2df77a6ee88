"""Turns sparse matrices of SciPy, and the arrays beside them, into a `tf.data.Dataset` with sparse features."""

from __future__ import annotations

from typing import Any

from parallax_runner.api.fit_arrays import is_scipy

SEED = 1  # of the shuffle, whose order differs from pass to pass


def has_sparse(*nests: Any) -> bool:
    """Returns whether one of the nests of arrays contains a sparse matrix of SciPy."""
    import keras

    return any(map(is_scipy, keras.tree.flatten(nests)))


def with_sparse_tensors(arrays: Any) -> Any:
    """Returns a nest of arrays with a `tf.SparseTensor` in place of each sparse matrix. Numbers are cast as Keras casts
    arrays."""
    import keras

    return keras.tree.map_structure(lambda leaf: _tensor(leaf) if is_scipy(leaf) else leaf, arrays)


def sparse_dataset(x: Any, y: Any, sample_weight: Any, *, batch_size: int, shuffle: bool) -> Any:
    """Returns a `tf.data.Dataset` of batches. Raises ConfigError if the arrays have different lengths."""
    import keras
    import tensorflow as tf

    from parallax_runner.errors import ConfigError

    parts = [part for part in (x, y, sample_weight) if part is not None]
    lengths = {leaf.shape[0] for leaf in keras.tree.flatten(parts)}
    if len(lengths) != 1:
        raise ConfigError(f"x (fit): expected arrays of the same length, found {sorted(lengths)}")
    rows = tf.data.Dataset.from_tensor_slices(tuple(with_sparse_tensors(part) for part in parts))
    if shuffle:
        rows = rows.shuffle(lengths.pop(), seed=SEED)
    return rows.batch(batch_size)


def _tensor(matrix: Any) -> Any:
    import keras
    import numpy as np
    import tensorflow as tf

    ordered = matrix.tocsr(copy=True)
    ordered.sum_duplicates()
    ordered.sort_indices()
    cells = ordered.tocoo()
    is_float = np.issubdtype(cells.dtype, np.floating)
    values = cells.data.astype(keras.config.floatx()) if is_float else cells.data
    indices = np.stack([cells.row, cells.col], axis=1).astype(np.int64)
    return tf.SparseTensor(indices, values, cells.shape)
