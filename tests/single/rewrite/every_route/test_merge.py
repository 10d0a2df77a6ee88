"""Merging: distinct ids, ascending, rows of equal ids summed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_runner.rewrite.every_route.merge import merge


class Merger:
    """`merge` for each dtype of ids, in one session."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.values = tf.placeholder(tf.float64, [None, 2])
            self.flat = tf.placeholder(tf.float64, [None])
            self.ids = {dtype: tf.placeholder(dtype, [None]) for dtype in ("int32", "int64")}
            self.merged = {dtype: merge(self.values, ids) for dtype, ids in self.ids.items()}
            self.merged_flat = {dtype: merge(self.flat, ids) for dtype, ids in self.ids.items()}
        self.session = tf.Session(graph=self.graph)

    def run(self, values: np.ndarray, ids: list[int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
        placeholder, merged = (self.flat, self.merged_flat) if values.ndim == 1 else (self.values, self.merged)
        return self.session.run(merged[dtype], {placeholder: values, self.ids[dtype]: ids})


@pytest.fixture(scope="module")
def merger() -> Iterator[Merger]:
    made = Merger()
    yield made
    made.session.close()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 20) | st.integers(0, 2**31 - 1), max_size=40), seed=st.integers(0, 99))
def test_it_is_what_numpy_says(merger: Merger, dtype: str, ids: list[int], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(len(ids), 2))
    merged, distinct = merger.run(values, ids, dtype)
    assert distinct.dtype == dtype
    assert distinct.tolist() == sorted(set(ids))
    expected = [
        sum(value for value, at in zip(values, ids, strict=True) if at == wanted) for wanted in sorted(set(ids))
    ]
    # Rows of one id are added in the order in which they stand: equal to the last bit.
    np.testing.assert_array_equal(merged, np.reshape(expected, [-1, 2]))


def test_ids_beyond_32_bits(merger: Merger) -> None:
    merged, distinct = merger.run(np.ones((3, 2)), [2**40, 5, 2**40], "int64")
    assert distinct.tolist() == [5, 2**40]
    assert merged.tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_nothing_merges_to_nothing(merger: Merger, dtype: str) -> None:
    merged, distinct = merger.run(np.zeros((0, 2)), [], dtype)
    assert (merged.shape, distinct.shape) == ((0, 2), (0,))


def test_rows_that_are_single_numbers(merger: Merger) -> None:
    merged, distinct = merger.run(np.array([1.0, 2, 4, 8]), [3, 0, 3, 3], "int32")
    assert (distinct.tolist(), merged.tolist()) == ([0, 3], [2, 13])


def test_the_shape_of_a_row_stays_known(merger: Merger) -> None:
    assert merger.merged["int32"][0].shape.as_list() == [None, 2]
    assert merger.merged["int32"][1].shape.as_list() == [None]
