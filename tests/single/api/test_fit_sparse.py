"""Sparse matrices of SciPy are sparse features: replicas together train on each row once a pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from parallax_runner.api.fit_data import dataset_of
from parallax_runner.api.fit_sparse import has_sparse, sparse_dataset, with_sparse_tensors
from parallax_runner.data.dataset import Feature
from parallax_runner.data.shares import SHARE
from parallax_runner.errors import ConfigError, DataError
from parallax_runner.shipment.data_files import why_data_stays
from parallax_runner.train.feed import Feed
from tests.single.api.test_fit import GIVEN

ROWS, BATCH = 14, 4
DENSE = np.where(np.arange(ROWS * 5).reshape(ROWS, 5) % 3, 0.0, np.arange(ROWS * 5).reshape(ROWS, 5))
Y = np.arange(ROWS, dtype="float32")
KINDS = [scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix, scipy.sparse.lil_matrix]


def dense_of(batch: dict[str, np.ndarray], name: str = "x") -> np.ndarray:
    found = np.zeros(batch[f"{name}/dense_shape"], batch[f"{name}/values"].dtype)
    found[tuple(batch[f"{name}/indices"].T)] = batch[f"{name}/values"]
    return found


def made(x: Any, **more: Any) -> Any:
    return dataset_of(**{**GIVEN, "x": x, "y": Y, "batch_size": BATCH, **more})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_row_trains_once_a_pass(kind: Any, *, shuffle: bool) -> None:
    data = made(kind(DENSE), shuffle=shuffle)
    assert data.features == {"x": Feature((5,), "float32", "sparse"), "y": Feature((), "float32")}
    assert (data.pass_steps, data.global_batch) == (4, BATCH) and why_data_stays(data) is None
    feeds = [Feed(data, 2, rank, 2) for rank in range(2)]
    for number in range(2):
        seen = []
        for step in range(4):
            for batch in (feed.train_batches((4 * number + step) * BATCH)[0] for feed in feeds):
                assert batch[SHARE] == 1.0
                np.testing.assert_array_equal(dense_of(batch), DENSE[batch["y"].astype(int)])
                seen += batch["y"].tolist()
        assert sorted(seen) == list(range(ROWS)) and (seen[:4] == [0, 2, 1, 3]) != shuffle


def test_beside_other_arrays_and_weights() -> None:
    x = {"words": scipy.sparse.csr_matrix(DENSE), "age": Y * 2}
    data = made(x, shuffle=False, sample_weight=Y / 2)
    (batch,) = Feed(data, BATCH, 0, 1).train_batches(BATCH)
    np.testing.assert_array_equal(dense_of(batch, "words"), DENSE[4:8])
    assert batch["age"].tolist() == [8, 10, 12, 14] and batch["sample_weight"].tolist() == [2, 2.5, 3, 3.5]
    (batch,) = Feed(made(x, shuffle=False, class_weight={1: 5.0}), BATCH, 0, 1).train_batches(0)
    assert batch["sample_weight"].tolist() == [1, 5, 1, 1]


@pytest.mark.parametrize("given", ["split", "arrays", "a dataset"])
def test_validation(given: str) -> None:
    matrix = scipy.sparse.csr_matrix(DENSE)
    more: dict[str, Any] = {"validation_split": 0.5}
    if given != "split":
        more = {"validation_data": (matrix[7:], Y[7:])}
    if given == "a dataset":
        tensor = tf.sparse.from_dense(DENSE[7:].astype("float32"))
        more = {"validation_data": tf.data.Dataset.from_tensor_slices((tensor, Y[7:])).batch(3)}
    data = made(matrix, **more)
    assert data.validation_size == 7
    read = list(Feed(data, BATCH, 0, 1).validation_batches(in_parts=False))
    for batch in read:
        np.testing.assert_array_equal(dense_of(batch), DENSE[batch["y"].astype(int)])
    assert sorted(np.concatenate([batch["y"] for batch in read])) == list(range(7, 14))


def test_a_matrix_becomes_a_tensor_with_ordered_cells() -> None:
    """The cell (0, 1) is given twice: SciPy adds such values."""
    matrix = scipy.sparse.coo_matrix(([1.0, 5.0, 2.0], ([0, 1, 0], [1, 0, 1])), shape=(2, 3))
    nest = {"words": matrix, "age": [Y, Y]}
    assert has_sparse(nest) and has_sparse(Y, matrix) and not has_sparse(nest["age"], None)
    found = with_sparse_tensors(nest)["words"]
    assert found.values.dtype == tf.float32 and found.indices.numpy().tolist() == [[0, 1], [1, 0]]
    np.testing.assert_array_equal(tf.sparse.to_dense(found), matrix.toarray())
    assert matrix.nnz == 3  # the caller's matrix stays as it is


def test_a_shuffled_pass_has_each_row_in_an_order_of_its_own() -> None:
    rows = sparse_dataset(scipy.sparse.csr_matrix(DENSE), Y, None, batch_size=BATCH, shuffle=True)
    passes = [[int(one) for _, y in rows for one in y] for _ in range(2)]
    assert passes[0] != passes[1] and sorted(passes[0]) == sorted(passes[1]) == list(range(ROWS))


def test_refused() -> None:
    matrix = scipy.sparse.csr_matrix(DENSE)
    with pytest.raises(ConfigError, match=r"expected arrays of the same length, found \[13, 14\]"):
        made(matrix[:13])
    with pytest.raises(DataError, match=r"validation_data: «x» is .* \[5\], expected float32 \[5\] \(sparse\)"):
        made(matrix, validation_data=(DENSE, Y))
    with pytest.raises(ConfigError, match="it has a sparse matrix, but x has none"):
        made(DENSE, validation_data=(matrix, Y))
