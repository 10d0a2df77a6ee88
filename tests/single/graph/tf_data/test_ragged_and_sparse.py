"""Ragged and sparse features that several workers read: each example is whole, and comes once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.dataset import Feature, examples_in
from parallax_runner.data.shares import SHARE
from parallax_runner.graph.components import rows
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.train.feed import Feed

BATCH, EXAMPLES, WIDTH = 4, 22, 5


def examples() -> Any:
    """Example i has i % 4 words, two lists of them, and i itself as a number and as one tag of five."""
    words = tf.ragged.range(tf.range(EXAMPLES) % 4) + tf.range(EXAMPLES)[:, None] * 10
    nested = tf.ragged.stack([words, -words[:, ::2]], axis=1)
    tags = np.zeros([EXAMPLES, WIDTH], np.float32)
    tags[np.arange(EXAMPLES), np.arange(EXAMPLES) % WIDTH] = np.arange(EXAMPLES)
    features = {"words": words, "nested": nested, "tags": tf.sparse.from_dense(tags), "id": tf.range(EXAMPLES)}
    return tf.data.Dataset.from_tensor_slices(features).shuffle(EXAMPLES, seed=5)


def batched() -> Any:
    return examples().batch(BATCH)


def whole_batches_mapped() -> Any:
    return examples().batch(BATCH, drop_remainder=True).map(lambda x: {**x, "words": x["words"] + 1000})


def mapped() -> Any:
    """The types do not tell how many examples a batch has, and the splits are int32."""
    return examples().batch(BATCH).map(lambda x: {**x, "words": x["words"].with_row_splits_dtype("int32") + 1000})


PIPELINES = [batched, whole_batches_mapped, mapped]


def told(batch: Mapping[str, np.ndarray]) -> list[tuple[int, Any, Any, Any]]:
    """The examples of a batch of arrays: id, words, nested, tags."""
    words = np.split(batch["words/values"], batch["words/row_splits"])[1:-1]
    nested = tf.RaggedTensor.from_nested_row_splits(
        batch["nested/values"], [batch["nested/row_splits"], batch["nested/row_splits_1"]]
    )
    tags = np.zeros(batch["tags/dense_shape"], np.float32)
    tags[tuple(batch["tags/indices"].T)] = batch["tags/values"]
    columns = batch["id"].tolist(), [one.tolist() for one in words], nested.to_list(), tags.tolist()
    return list(zip(*columns, strict=True))


def plainly(element: Mapping[str, Any]) -> list[tuple[int, Any, Any, Any]]:
    """The examples of a batch, as TensorFlow tells them."""
    columns = (
        *(element["id"].numpy().tolist(), element["words"].to_list(), element["nested"].to_list()),
        tf.sparse.to_dense(element["tags"]).numpy().tolist(),
    )
    return list(zip(*columns, strict=True))


def cases() -> list[Any]:
    """Returns every pipeline with several first steps and numbers of ranks; the default tier has each of both."""
    basic = ((batched, 0), (batched, 13), (whole_batches_mapped, 12), (mapped, 3))
    return [
        pytest.param(
            make, first, ranks, id=f"{'' if (make, first) in basic else 'more-'}{make.__name__}-{first}-{ranks}"
        )
        for make in PIPELINES
        for first, ranks in ((0, 4), (3, 2), (12, 2), (13, 1))
    ]


@pytest.mark.parametrize(("make", "first", "ranks"), cases())
def test_ranks_together_read_what_one_process_reads(make: Callable[[], Any], first: int, ranks: int) -> None:
    dataset = make()
    expected = [plainly(batch) for _ in range(3) for batch in dataset]
    data = TfDataset.of(make())
    feeds = [Feed(data, BATCH // ranks, rank, ranks) for rank in range(ranks)]
    for step in range(first, len(expected)):
        read = [feed.train_batches(step * BATCH)[0] for feed in feeds]
        if len(expected[step]) == BATCH:
            assert {examples_in(batch, data.features) for batch in read} == {BATCH // ranks}
        trained = [batch for batch in read if batch.get(SHARE, 1.0) > 0]
        assert sorted(one for batch in trained for one in told(batch)) == sorted(expected[step]), step


@pytest.mark.parametrize("make", PIPELINES)
def test_replicas_and_a_filler(make: Callable[[], Any]) -> None:
    expected = plainly(next(iter(make())))
    feed = Feed(TfDataset.of(make()), BATCH // 2, rank=0, size=1, replicas=2)
    one, other = map(told, feed.train_batches(0))
    assert len(one) == len(other) == BATCH // 2 and sorted(one + other) == sorted(expected)
    assert [number for number, *_ in told(feed.any_batch)] == list(range(BATCH // 2))


@pytest.mark.parametrize("make", PIPELINES)
def test_ranks_validate_on_each_example_once(make: Callable[[], Any]) -> None:
    read = []
    for rank in range(2):  # each in a process of its own: it sees the first order of a shuffle
        data = TfDataset.of(batched(), make())
        feed = Feed(data, BATCH // 2, rank, 2)
        read += [(feed.examples_in(batch), told(batch)) for batch in feed.validation_batches(in_parts=False)]
    assert sorted(one for _, batch in read for one in batch) == sorted(
        one for batch in make() for one in plainly(batch)
    )
    assert all(count == len(batch) for count, batch in read)


def test_a_small_last_batch_has_so_many_examples() -> None:
    for name in ("words", "nested", "tags", "id"):
        data = TfDataset.of(batched(), examples().batch(3))
        feature = {name: data.features[name]}
        sizes = [examples_in(batch, feature) for batch in Feed(data, BATCH, 0, 1).validation_batches(in_parts=False)]
        assert sizes == [3] * 7 + [1], name


def test_what_a_batch_has_is_what_its_features_say() -> None:
    data = TfDataset.of(mapped())
    assert data.features == {
        "words": Feature((None,), "int32", "ragged", 1),
        "nested": Feature((None, None), "int32", "ragged", 2),
        "tags": Feature((WIDTH,), "float32", "sparse"),
        "id": Feature((), "int32"),
    }
    (batch,) = Feed(data, BATCH, 0, 1).train_batches(0)
    names = [
        name if not feature.components else f"{name}/{component}"
        for name, feature in data.features.items()
        for component in feature.components or ("",)
    ]
    assert sorted(batch) == sorted([SHARE, *names])
    assert batch["words/row_splits"].dtype == batch["tags/indices"].dtype == batch["tags/dense_shape"].dtype == np.int64
    assert batch["words/row_splits"].shape == (BATCH + 1,) and batch["tags/dense_shape"].tolist() == [BATCH, WIDTH]


@pytest.mark.parametrize("cut", [slice(0, None, 3), slice(2, None, 3), slice(1, 4), slice(3, 99), slice(5, None, 2)])
def test_rows_of_a_sparse_tensor(cut: slice) -> None:
    dense = np.array([[0, 1], [0, 0], [2, 3], [4, 0], [0, 5], [0, 0], [6, 0]])
    found = rows(tf.sparse.from_dense(dense), cut.start, cut.stop, cut.step or 1)
    np.testing.assert_array_equal(tf.sparse.to_dense(found), dense[cut])


def test_ragged_and_sparse_strings() -> None:
    words = tf.ragged.constant([["ü"], [], ["b", "c"], ["a", ""]])
    tags = tf.SparseTensor([[0, 1], [3, 0]], ["x", "y"], [4, 2])
    dataset = TfDataset.of(tf.data.Dataset.from_tensor_slices({"words": words, "tags": tags}).batch(4))
    assert {name: (one.dtype, one.kind) for name, one in dataset.features.items()} == {
        "words": ("string", "ragged"),
        "tags": ("string", "sparse"),
    }
    batches = [dataset.share(rank, 2, 1).train_batches(0)[0] for rank in range(2)]
    assert [batch["words/values"].tolist() for batch in batches] == [["ü".encode(), b"b", b"c"], [b"a", b""]]
    assert [batch["tags/values"].tolist() for batch in batches] == [[b"x"], [b"y"]]
