"""Batches whose shapes differ: each replica gets its rows of the batch, as one process sees them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.dataset import Feature
from parallax_runner.data.shares import SHARE
from parallax_runner.errors import DataError
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.train.feed import Feed

BATCH, EXAMPLES, PASSES = 4, 18, 3


def sentences() -> Any:
    """Example i has i % 5 + 1 words, and the number i."""
    numbers = tf.data.Dataset.range(1, EXAMPLES + 1).shuffle(EXAMPLES, seed=3)
    return numbers.map(lambda i: ({"words": tf.fill([i % 5 + 1], i)}, i))


def padded() -> Any:
    return sentences().padded_batch(BATCH)


def padded_and_mapped() -> Any:
    return sentences().padded_batch(BATCH).map(lambda x, y: (x, y)).prefetch(1)


def padded_to_one_length() -> Any:
    return sentences().padded_batch(BATCH, padded_shapes=({"words": [7]}, []))


def whole_padded() -> Any:
    return sentences().padded_batch(BATCH, drop_remainder=True)


def to_tensor() -> Any:
    return sentences().ragged_batch(BATCH).map(lambda x, y: ({"words": x["words"].to_tensor()}, y))


def bucketed() -> Any:
    """Buckets have batches of three sizes."""
    return sentences().bucket_by_sequence_length(lambda x, y: tf.shape(x["words"])[0], [3, 5], [3, 4, 5])


def endless_buckets() -> Any:
    return sentences().repeat().bucket_by_sequence_length(lambda x, y: tf.shape(x["words"])[0], [3, 5], [4, 4, 4])


def windows() -> Any:
    values = np.repeat(np.arange(1, EXAMPLES + 7, dtype="int64"), 2).reshape(-1, 2)
    dataset = keras.utils.timeseries_dataset_from_array(
        values, np.arange(1, EXAMPLES + 1), sequence_length=7, batch_size=BATCH, shuffle=True, seed=5
    )
    return dataset.map(lambda x, y: ({"words": x[:, :, 0]}, y))


FINITE = [padded, padded_and_mapped, padded_to_one_length, whole_padded, to_tensor, bucketed, windows]
PIPELINES = [*FINITE, endless_buckets]


def plainly(dataset: Any) -> list[tuple[Any, Any]]:
    """The batches that one process sees."""
    passes = [dataset.take(12)] if TfDataset.of(dataset).is_endless else [dataset] * PASSES
    return [(x["words"].numpy(), y.numpy()) for one in passes for x, y in one]


@pytest.mark.parametrize(("ranks", "first"), [(1, 0), (2, 3), (3, 4)])
@pytest.mark.parametrize("make", PIPELINES)
def test_replicas_get_their_rows_of_each_batch(make: Callable[[], Any], ranks: int, first: int) -> None:
    expected = plainly(make())
    data = TfDataset.of(make())
    feeds = [Feed(data, -(-BATCH // ranks), rank, ranks) for rank in range(ranks)]
    for step in range(first, len(expected)):
        read = [feed.train_batches(step * data.global_batch)[0] for feed in feeds]
        words, numbers = expected[step]
        assert np.mean([batch.get(SHARE, 1.0) for batch in read]) == pytest.approx(1.0)
        for rank, batch in enumerate(read):
            if batch.get(SHARE, 1.0):
                np.testing.assert_array_equal(batch["words"], words[rank::ranks])
                np.testing.assert_array_equal(batch["y"], numbers[rank::ranks])
        assert sum(len(batch["y"]) for batch in read if batch.get(SHARE, 1.0)) == len(numbers)


def lengths(words: np.ndarray, numbers: np.ndarray) -> list[tuple[int, int]]:
    """The padded length and the number of each example of a batch."""
    return [(words.shape[1], int(number)) for number in numbers]


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("make", FINITE)
def test_ranks_validate_on_each_batch_or_on_rows_of_it(make: Callable[[], Any], *, in_parts: bool) -> None:
    expected = [one for x, y in make() for one in lengths(x["words"].numpy(), y.numpy())]
    read = []
    for rank in range(2):  # each in a process of its own: it sees the first order of a shuffle
        feed = Feed(TfDataset.of(padded(), make()), BATCH // 2, rank, 2)
        batches = list(feed.validation_batches(in_parts=in_parts))
        assert not in_parts or max(len(batch["y"]) for batch in batches) == BATCH // 2
        plain = [lengths(x["words"].numpy(), y.numpy()) for x, y in make()][rank::2]
        assert in_parts or [lengths(batch["words"], batch["y"]) for batch in batches] == plain
        read += [one for batch in batches for one in lengths(batch["words"], batch["y"])]
    assert sorted(read) == sorted(expected)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: padded().map(lambda x, y: (x, y[:, None])), "«y» is int64 [1], expected int64 []"),
        (
            lambda: sentences().padded_batch(BATCH, padded_shapes=({"words": [9]}, [])),
            "«words» is int64 [9], expected int64 [7]",
        ),
        (lambda: sentences().ragged_batch(BATCH), "«words» is int64 [None] (ragged), expected int64 [7]"),
    ],
)
def test_validation_data_of_other_shapes_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"validation_data: {told}")):
        TfDataset.of(padded_to_one_length(), make())


def test_a_validation_can_have_sizes_that_the_training_has_not() -> None:
    data = TfDataset.of(padded_to_one_length(), padded())
    assert (data.features["words"].shape, data.validation_features["words"].shape) == ((7,), (None,))
    assert TfDataset.of(padded(), padded_to_one_length()).validation_features["words"].shape == (None,)
    assert TfDataset.of(padded_to_one_length()).validation_features == TfDataset.of(padded_to_one_length()).features


def test_what_is_known_of_them() -> None:
    data = TfDataset.of(padded())
    assert data.features == {"words": Feature((None,), "int64"), "y": Feature((), "int64")}
    assert (data.global_batch, data.pass_steps, data.has_partial_batches) == (BATCH, 5, True)
    assert TfDataset.of(padded_to_one_length()).features["words"].shape == (7,)
    assert TfDataset.of(to_tensor()).pass_steps == TfDataset.of(windows()).pass_steps == 5
    assert TfDataset.of(bucketed()).pass_steps == len(list(bucketed()))
    assert not TfDataset.of(whole_padded()).has_partial_batches
    assert TfDataset.of(endless_buckets()).is_endless
    first = TfDataset.of(bucketed()).train_batch(0, 2)
    assert first["words"].shape[0] == 2


def test_an_unknown_number_of_dimensions_is_refused() -> None:
    def anything(x: Any) -> Any:
        return tf.py_function(lambda one: one, [x], tf.int64)

    with pytest.raises(DataError, match=r"the number of dimensions of «x» is unknown: set it in a map with tf\.ensure"):
        TfDataset.of(tf.data.Dataset.range(8).batch(4).map(anything), exact=False)


def test_elements_that_are_no_batches_are_refused() -> None:
    examples = sentences().map(lambda x, y: (x["words"], tf.fill([3], y)))
    with pytest.raises(DataError, match=r"same number of rows; the first element has 2 for «x», 3 for «y»: make"):
        TfDataset.of(examples)
    with pytest.raises(DataError, match="the data: it has no batches"):
        TfDataset.of(bucketed().filter(lambda x, y: tf.size(y) < 0))
