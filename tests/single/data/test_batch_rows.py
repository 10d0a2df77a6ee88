"""Batches of chosen examples, compared with what TensorFlow gathers and concatenates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.batch_rows import Batch, Features, joined, taken
from parallax_runner.graph.components import components, feature_of

RAGGED = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64, row_splits_dtype=tf.int64)
OTHER_RAGGED = tf.ragged.constant([[], [7, 8, 9]], dtype=tf.int64, row_splits_dtype=tf.int64)
NESTED = tf.ragged.constant([[[1], [2, 3]], [], [[], [4]]], dtype=tf.int64, row_splits_dtype=tf.int64)
OTHER_NESTED = tf.ragged.constant([[[5, 6], []], [[7]]], dtype=tf.int64, row_splits_dtype=tf.int64)
PAIRS = tf.RaggedTensor.from_row_splits(np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 4]))
OTHER_PAIRS = tf.RaggedTensor.from_row_splits(np.arange(6.0).reshape(3, 2), np.array([0, 2, 3]))
SPARSE = tf.sparse.from_dense([[0, 5, 0], [0, 0, 0], [6, 0, 7]])
OTHER_SPARSE = tf.sparse.from_dense([[0, 0, 0], [8, 9, 0]])
KINDS = {
    "ragged": (RAGGED, OTHER_RAGGED),
    "two ragged dimensions": (NESTED, OTHER_NESTED),
    "ragged pairs": (PAIRS, OTHER_PAIRS),
    "sparse": (SPARSE, OTHER_SPARSE),
    "dense": (tf.range(6.0)[:, None][:3], tf.range(3.0)[:, None][:2]),
    "strings": (tf.constant(["a", "", "c"]), tf.constant(["d", "e"])),
}


def of(value: Any) -> tuple[Batch, Features]:
    return {name: one.numpy() for name, one in components("x", value).items()}, {
        "x": feature_of(tf.type_spec_from_value(value))
    }


def check(found: Batch, expected: Any) -> None:
    for name, one in of(expected)[0].items():
        np.testing.assert_array_equal(found[name], one)
        assert found[name].dtype == one.dtype


def gathered(value: Any, rows: list[int]) -> Any:
    if not isinstance(value, tf.SparseTensor):
        return tf.gather(value, rows)
    parts = [tf.sparse.slice(value, [row, 0], [1, value.shape[1]]) for row in rows]
    return tf.sparse.concat(0, parts)


@pytest.mark.parametrize("rows", [[0], [2, 1, 0], [2, 2, 0, 2]])
@pytest.mark.parametrize("kind", KINDS)
def test_taken(kind: str, rows: list[int]) -> None:
    value, _ = KINDS[kind]
    batch, features = of(value)
    check(taken(batch, features, rows), gathered(value, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_joined(kind: str) -> None:
    one, other = KINDS[kind]
    concat = tf.sparse.concat if kind == "sparse" else tf.concat
    batch, features = of(one)
    expected = concat(0, [one, other]) if kind == "sparse" else concat([one, other], 0)
    check(joined(batch, of(other)[0], features), expected)


def test_a_dense_example_gets_the_shape_of_the_others() -> None:
    batch, features = of(tf.constant([[1, 2, 3]]))
    assert joined(batch, {"x": np.array([[4, 5]])}, features)["x"].tolist() == [[1, 2, 3], [4, 5, 4]]
    assert joined(batch, {"x": np.array([[4, 5, 6, 7]])}, features)["x"].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_sparse_batch_in_another_order() -> None:
    batch, features = of(SPARSE)
    mixed = batch | {"x/indices": batch["x/indices"][::-1], "x/values": batch["x/values"][::-1]}
    found = taken(mixed, features, [2, 0])
    assert sorted(found["x/values"].tolist()) == [5, 6, 7]
    assert found["x/indices"][:, 0].tolist() == [0, 0, 1]
