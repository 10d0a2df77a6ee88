"""A tf.data.Dataset that several workers read: no example is lost or repeated, wherever a run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.errors import DataError
from parallax_runner.graph.tf_data.dataset import TfDataset
from parallax_runner.graph.tf_data.repeatable import why_not_repeatable
from parallax_runner.train.feed import Feed

BATCH, EXAMPLES = 4, 22  # five whole batches a pass


def shuffled() -> Any:
    return tf.data.Dataset.range(EXAMPLES).shuffle(EXAMPLES, seed=5).map(lambda x: ({"id": x}, x * 2)).batch(BATCH)


def in_order() -> Any:
    return tf.data.Dataset.range(EXAMPLES).map(lambda x: ({"id": x}, x * 2)).batch(BATCH).prefetch(2)


def mapped_in_batches() -> Any:
    batches = tf.data.Dataset.range(EXAMPLES).shuffle(EXAMPLES, seed=5).batch(BATCH, drop_remainder=True)
    return batches.map(lambda x: ({"id": x}, x * 2))


def filtered() -> Any:
    return shuffled().unbatch().filter(lambda x, y: x["id"] < 21).batch(BATCH)


def endless() -> Any:
    return tf.data.Dataset.range(EXAMPLES).map(lambda x: ({"id": x}, x * 2)).shuffle(9, seed=1).repeat().batch(BATCH)


PIPELINES = [shuffled, in_order, mapped_in_batches, filtered, endless]


def plainly(dataset: Any, passes: int) -> list[list[int]]:
    """The ids of each whole batch, as one process sees them, pass after pass."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        return [x["id"].numpy().tolist() for x, _ in dataset.take(5 * passes)]
    return [x["id"].numpy().tolist() for _ in range(passes) for x, _ in dataset if len(x["id"]) == BATCH]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("first", [0, 3, 5, 12])
@pytest.mark.parametrize("make", PIPELINES)
def test_ranks_together_read_what_one_process_reads(make: Callable[[], Any], first: int, ranks: int) -> None:
    expected = plainly(make(), passes=4)
    # Workers are told what the first process has counted: to count is to begin a pass, and changes the orders to come.
    feeds = [Feed(TfDataset(make(), pass_steps=5), BATCH // ranks, rank, ranks) for rank in range(ranks)]
    for step in range(first, len(expected)):
        read = [feed.train_batches(step * BATCH)[0] for feed in feeds]
        assert {len(batch["id"]) for batch in read} == {BATCH // ranks}
        assert sorted(np.concatenate([batch["id"] for batch in read])) == sorted(expected[step]), step
        for batch in read:
            np.testing.assert_array_equal(batch["y"], 2 * batch["id"])


def test_replicas_of_a_worker_and_skipped_steps() -> None:
    expected = plainly(shuffled(), passes=2)
    feed = Feed(TfDataset(shuffled()), BATCH // 2, rank=0, size=1, replicas=2)
    for step in (1, 4, 8):
        read = feed.train_batches(step * BATCH)
        assert len(read) == 2 and sorted(np.concatenate([batch["id"] for batch in read])) == sorted(expected[step])


def test_beside_a_graph_and_in_another_thread() -> None:
    """As a worker reads: its session's graph is the default one, and a thread prepares batches."""
    feed, found = Feed(TfDataset(in_order(), in_order()), BATCH, 0, 1), []
    with tf.Graph().as_default() as graph:
        graph.finalize()
        found.append(feed.train_batches(0)[0]["id"])
        found += [batch["id"] for batch in feed.validation_batches()]
    thread = threading.Thread(target=lambda: found.append(feed.train_batches(BATCH)[0]["id"]))
    thread.start()
    thread.join()
    assert len(found) == 7 and found[-1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("make", [in_order, mapped_in_batches])
def test_ranks_validate_on_each_whole_batch_once(make: Callable[[], Any]) -> None:
    read, whole = [], 0
    for rank in range(2):  # each in a process of its own: it sees the first order of a shuffle
        data = TfDataset(in_order(), make())
        whole = data.validation_size // 2 * 2
        read += [batch["id"] for batch in Feed(data, BATCH // 2, rank, 2).validation_batches()]
    assert {len(ids) for ids in read} == {2} and len(np.concatenate(read)) == len(set(np.concatenate(read))) == whole


def test_what_is_known_of_it() -> None:
    data = TfDataset(shuffled(), in_order())
    assert (data.global_batch, data.pass_steps, data.train_size, data.validation_size) == (4, 5, 20, 22)
    assert data.features["id"].shape == () and data.features["id"].dtype == "int64"
    assert TfDataset(filtered()).pass_steps == 5 and TfDataset(endless()).is_endless


def test_data_that_ends_early_is_an_error() -> None:
    feed = Feed(TfDataset(in_order(), pass_steps=7), BATCH, 0, 1)
    with pytest.raises(DataError, match="ended after 5 of 7 batches"):
        feed.train_batches(5 * BATCH)


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (lambda: tf.data.Dataset.range(9).shuffle(9).batch(3), "a shuffle has no seed"),
        (
            lambda: tf.data.Dataset.from_generator(
                lambda: iter([1, 2]), output_signature=tf.TensorSpec([], tf.int32)
            ).batch(1),
            "a Python generator",
        ),
        (
            lambda: (
                tf.data.Dataset.range(9)
                .map(lambda x: tf.ensure_shape(tf.numpy_function(np.negative, [x], tf.int64), []))
                .batch(3)
            ),
            "a Python function",
        ),
        (
            lambda: tf.data.Dataset.range(9).map(lambda x: x + tf.random.uniform([], 0, 4, tf.int64)).batch(3),
            "a map draws random numbers",
        ),
        (
            lambda: tf.data.Dataset.range(9).map(lambda x: x, num_parallel_calls=2, deterministic=False).batch(3),
            "deterministic=False",
        ),
    ],
)
def test_an_order_that_nobody_can_repeat_is_refused(dataset: Callable[[], Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        TfDataset(dataset())
    assert TfDataset(dataset(), exact=False).global_batch


def test_a_global_seed_is_a_seed() -> None:
    tf.random.set_seed(4)
    try:
        assert why_not_repeatable(tf.data.Dataset.range(9).shuffle(9).batch(3)) is None
    finally:
        tf.random.set_seed(None)


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (lambda: tf.data.Dataset.range(9), r"let \.batch\(N\) be the last step"),
        (lambda: tf.data.Dataset.range(9).batch(4).map(lambda x: x + 1), "drop_remainder=True"),
        (lambda: tf.data.Dataset.range(2).batch(4), "less than one batch of 4"),
        (lambda: ragged(), "only dense tensors"),
    ],
)
def test_what_cannot_be_cut_is_refused(dataset: Callable[[], Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        TfDataset(dataset())


def ragged() -> Any:
    return tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2)
