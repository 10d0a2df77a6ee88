"""Partial batches, and batches that the number of replicas does not divide: all replicas together train on each example
of each batch that one process sees, once, in every pass, wherever a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.dataset import is_uneven, with_pass_steps, with_whole_batches
from parallax_runner.data.shares import SHARE
from parallax_runner.errors import DataError
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.train.feed import Feed

BATCH, EXAMPLES, PASSES = 6, 20, 3  # the last batch of a pass has two examples


def numbers() -> Any:
    return tf.data.Dataset.range(EXAMPLES).map(lambda x: ({"id": x}, x * 2))


def shuffled() -> Any:
    return numbers().shuffle(EXAMPLES, seed=5).batch(BATCH).prefetch(2)


def divided() -> Any:
    """No batch is partial."""
    return numbers().take(18).shuffle(EXAMPLES, seed=5).batch(BATCH)


def dropped() -> Any:
    return numbers().shuffle(EXAMPLES, seed=5).batch(BATCH, drop_remainder=True)


def filtered() -> Any:
    return shuffled().unbatch().filter(lambda x, y: x["id"] < 13).batch(BATCH)


def mapped_after_batching() -> Any:
    return numbers().batch(BATCH).map(lambda x, y: ({"id": x["id"] + 1}, y + 2)).shuffle(9, seed=3)


def masked_after_batching() -> Any:
    """Batches of many sizes."""

    def odd(x: Any, y: Any) -> Any:
        keeps = x["id"] % 5 > 0
        return {"id": tf.boolean_mask(x["id"], keeps)}, tf.boolean_mask(y, keeps)

    return numbers().batch(BATCH).map(odd)


def filtered_after_batching() -> Any:
    return numbers().batch(BATCH).filter(lambda x, y: x["id"][0] != 6)


def enumerated() -> Any:
    return numbers().batch(BATCH).enumerate().map(lambda number, batch: batch)


def joined() -> Any:
    return numbers().take(9).batch(BATCH).concatenate(numbers().skip(9).batch(4)).cache()


def zipped() -> Any:
    parts = (numbers().batch(BATCH).map(lambda x, y: x), numbers().batch(BATCH).map(lambda x, y: y))
    return tf.data.Dataset.zip(parts)


def repeated() -> Any:
    """Never ends, and has partial batches in the middle."""
    return numbers().shuffle(EXAMPLES, seed=2).batch(BATCH).repeat()


def fewer_than_a_batch() -> Any:
    return numbers().take(3).batch(BATCH)


def cached() -> Any:
    return numbers().shuffle(EXAMPLES, seed=5).cache().batch(BATCH)


PIPELINES = [
    *(shuffled, divided, dropped, filtered, mapped_after_batching, masked_after_batching, filtered_after_batching),
    *(enumerated, joined, zipped, repeated, fewer_than_a_batch, cached),
]


def plainly(dataset: Any) -> list[list[int]]:
    """The ids of each batch, as one process sees them, pass after pass."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        return [x["id"].numpy().tolist() for x, _ in dataset.take(9)]
    return [x["id"].numpy().tolist() for _ in range(PASSES) for x, _ in dataset]


def check_step(batches: list[dict[str, np.ndarray]], expected: list[int]) -> None:
    """Checks the batches of all replicas in one step."""
    trained = []
    for batch in batches:
        np.testing.assert_array_equal(batch["y"], 2 * batch["id"])
        assert len(batch["id"]) > 0 and batch[SHARE].dtype == np.float64 and batch[SHARE].shape == ()
        size = len(batch["id"]) if batch[SHARE] else 0
        assert batch[SHARE] == pytest.approx(len(batches) * size / len(expected))
        trained += batch["id"].tolist()[:size]
    assert sorted(trained) == sorted(expected)
    assert np.mean([batch[SHARE] for batch in batches]) == pytest.approx(1.0)
    assert batches[0][SHARE] > 0


# First steps, numbers of ranks, and replicas of each.
PLACES = [(0, 1, 1), (0, 4, 1), (3, 2, 1), (5, 3, 1), (4, 2, 2), (7, 3, 2), (2, 1, 4)]


def cases() -> list[Any]:
    """Returns every pipeline with every place. The default tier has each pipeline and each place at least once."""
    made = []
    for number, make in enumerate(PIPELINES):
        for at, place in enumerate(PLACES):
            name = "-".join([make.__name__, *map(str, place)])
            made.append(pytest.param(make, *place, id=name if number % len(PLACES) == at else f"more-{name}"))
    return made


@pytest.mark.parametrize(("make", "first", "ranks", "replicas"), cases())
def test_replicas_together_train_on_each_batch_of_one_process(
    make: Callable[[], Any], first: int, ranks: int, replicas: int
) -> None:
    expected = plainly(make())
    data = TfDataset.of(make())
    size = -(-BATCH // (ranks * replicas))
    feeds = [Feed(data, size, rank, ranks, replicas) for rank in range(ranks)]
    assert data.global_batch == BATCH
    if not is_uneven(data, ranks * replicas):
        assert feeds[0].train_batches(0)[0].keys() == {"id", "y"}
        return
    assert {feed.global_batch for feed in feeds} == {BATCH}
    for step in range(first, len(expected)):
        by_rank = [feed.train_batches(step * BATCH) for feed in feeds]
        numbered = [by_rank[rank][replica] for replica in range(replicas) for rank in range(ranks)]
        check_step(numbered, expected[step])


@pytest.mark.parametrize("make", [shuffled, mapped_after_batching])
def test_skipped_steps_and_steps_back(make: Callable[[], Any]) -> None:
    expected = plainly(make())
    feeds = [Feed(TfDataset.of(make()), 3, rank, 2) for rank in range(2)]
    for step in (3, 6, 7, 11, 3, 0):
        check_step([feed.train_batches(step * BATCH)[0] for feed in feeds], expected[step])


def test_a_pass_has_the_steps_of_keras() -> None:
    steps = {make.__name__: TfDataset.of(make()).pass_steps for make in PIPELINES if make is not repeated}
    assert steps == {make.__name__: len(list(make())) for make in PIPELINES if make is not repeated}
    data = TfDataset.of(shuffled())
    assert (data.train_size, data.pass_examples, data.notes) == (4 * BATCH, EXAMPLES, ())
    assert TfDataset.of(dropped()).notes == (
        "2 examples are omitted from each pass over the data, because they do not fill a batch",
    )


def test_what_is_uneven() -> None:
    def uneven_with(make: Callable[[], Any]) -> list[int]:
        return [replicas for replicas in range(1, 5) if is_uneven(TfDataset.of(make()), replicas)]

    assert uneven_with(divided) == uneven_with(dropped) == [4]
    assert uneven_with(lambda: divided().cache().repeat()) == [4]
    assert uneven_with(lambda: numbers().repeat().batch(BATCH)) == [4]
    partial = [make for make in PIPELINES if make not in (divided, dropped)]
    assert all(uneven_with(make) == [1, 2, 3, 4] for make in partial)
    assert all(not is_uneven(TfDataset.of(make()).with_whole_batches(), 3) for make in partial[:2])


def test_a_worker_computes_only_its_own_examples() -> None:
    read = []

    def noted(number: Any) -> Any:
        read.append(int(number))
        return number

    def parsed(x: Any) -> Any:
        return {"id": tf.ensure_shape(tf.numpy_function(noted, [x], tf.int64, stateful=False), [])}

    data = TfDataset.of(tf.data.Dataset.range(EXAMPLES).map(parsed).batch(BATCH), exact=False)
    feed = Feed(data, 3, 1, 2)
    for step in range(4):
        feed.train_batches(step * BATCH)
    assert set(read) <= {0, *range(1, EXAMPLES, 2)}


def test_data_of_unknown_length_that_ends_with_a_partial_batch() -> None:
    """With steps_per_epoch, nothing is counted, and Keras trains on the last batch, too."""
    dataset = numbers().filter(lambda x, y: True).batch(BATCH)
    data = TfDataset.of(dataset, is_counted=False)
    feeds = [Feed(data, 2, rank, 3) for rank in range(3)]
    for step, expected in enumerate(x["id"].numpy().tolist() for x, _ in dataset):
        check_step([feed.train_batches(step * BATCH)[0] for feed in feeds], expected)
    with pytest.raises(DataError, match=r"ended before batch 5: its length is unknown"):
        feeds[0].train_batches(4 * BATCH)


def test_a_worker_uses_the_numbers_that_the_driver_has_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = TfDataset.of(filtered())
    data = with_pass_steps(TfDataset.of(filtered()), counted.pass_steps, counted.pass_examples)
    monkeypatch.setattr(type(data.train), "count", None)
    expected = plainly(filtered())
    feeds = [Feed(data, 3, rank, 2) for rank in range(2)]
    for step in (2, 3, 8):
        check_step([feed.train_batches(step * BATCH)[0] for feed in feeds], expected[step])


@pytest.mark.parametrize("make", [shuffled, mapped_after_batching, filtered])
def test_a_later_call_goes_on_with_the_next_pass(make: Callable[[], Any]) -> None:
    expected = plainly(make())
    data = TfDataset.of(make())
    steps = data.pass_steps
    feeds = [Feed(data.after(steps), 2, rank, 3) for rank in range(3)]
    for step in range(steps):
        check_step([feed.train_batches(step * BATCH)[0] for feed in feeds], expected[steps + step])


def test_a_job_of_a_few_steps_reads_the_same() -> None:
    for steps in (2, 3):
        data = TfDataset.of(filtered()).first_steps(steps)
        assert data.is_endless == (steps == 2) and is_uneven(data, 2)
        feeds = [Feed(data, 3, rank, 2) for rank in range(2)]
        for step, expected in enumerate(plainly(filtered())[:steps]):
            check_step([feed.train_batches(step * BATCH)[0] for feed in feeds], expected)


def test_changed_data_is_an_error() -> None:
    data = with_pass_steps(TfDataset.of(filtered()), 3, 15)
    with pytest.raises(DataError, match=r"before batch 3 of 3 in pass 1: it has changed"):
        Feed(data, 3, 1, 2).train_batches(2 * BATCH)


def test_whole_batches_are_refused_where_no_size_is_known() -> None:
    with pytest.raises(DataError, match=r"needs batches of one size.*drop_remainder=True"):
        with_whole_batches(TfDataset.of(zipped()))
    with pytest.raises(DataError, match="less than one batch of 6"):
        with_whole_batches(TfDataset.of(fewer_than_a_batch()))


@pytest.mark.parametrize("make", PIPELINES)
def test_ranks_validate_on_each_example_once(make: Callable[[], Any]) -> None:
    if make is repeated:
        return
    expected = sorted(number for x, _ in make() for number in x["id"].numpy().tolist())
    read = []
    for rank in range(4):
        feed = Feed(TfDataset.of(shuffled(), make()), 2, rank, 4)
        read += [batch["id"] for batch in feed.validation_batches(in_parts=False)]
    assert sorted(np.concatenate(read)) == expected


def test_a_filler_of_data_with_fewer_examples_than_a_batch() -> None:
    feed = Feed(TfDataset.of(fewer_than_a_batch()), BATCH, 0, 1)
    assert feed.any_batch["id"].tolist() == [0, 1, 2] and SHARE not in feed.any_batch
