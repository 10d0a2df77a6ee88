"""Which examples a rank sees."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.from_arrays import Arrays, arrays_dataset
from parallax_runner.data.shares import SHARE
from parallax_runner.train.feed import Feed


def dataset(train: int, validation: int = 0, seed: int = 1) -> ArrayDataset:
    """Examples that are their own numbers, negative ones for validation."""
    return ArrayDataset(
        train={"number": np.arange(train), "twice": 2 * np.arange(train)},
        validation={"number": -1 - np.arange(validation), "twice": -2 - 2 * np.arange(validation)},
        words_per_example=None,
        seed=seed,
    )


def feeds(size: int, batch_size: int, data: ArrayDataset, replicas: int = 1) -> list[Feed]:
    return [Feed(data, batch_size, rank, size, replicas) for rank in range(size)]


sizes, batch_sizes = st.integers(1, 4), st.integers(1, 5)


@settings(deadline=None)
@given(
    size=sizes,
    replicas=st.integers(1, 3),
    batch_size=batch_sizes,
    examples=st.integers(1, 60),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_every_example_once_an_epoch(
    size: int, replicas: int, batch_size: int, examples: int, epochs: int, seed: int
) -> None:
    ranks = feeds(size, batch_size, dataset(examples, seed=seed), replicas)
    position, seen = 0, []
    while position < epochs * examples:
        for feed in ranks:
            seen += [number for batch in feed.train_batches(position) for number in batch["number"].tolist()]
        position += ranks[0].global_batch
    assert len(seen) == position  # The position is the number of examples that were seen.
    for epoch in range(epochs):
        assert sorted(seen[epoch * examples : (epoch + 1) * examples]) == list(range(examples))


@settings(deadline=None)
@given(
    size=sizes, replicas=st.integers(1, 3), batch_size=batch_sizes, examples=st.integers(1, 60), step=st.integers(0, 30)
)
def test_replicas_together_see_what_one_with_the_whole_batch_sees(
    size: int, replicas: int, batch_size: int, examples: int, step: int
) -> None:
    ranks = feeds(size, batch_size, dataset(examples), replicas)
    (alone,) = feeds(1, size * replicas * batch_size, dataset(examples))
    assert alone.global_batch == ranks[0].global_batch == size * replicas * batch_size
    position = step * alone.global_batch
    batches = [batch for feed in ranks for batch in feed.train_batches(position)]
    whole = alone.train_batches(position)[0]
    assert set(whole) == {"number", "twice"}
    for name, expected in whole.items():
        assert all(len(batch[name]) == batch_size for batch in batches)
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in batches]), expected)


def test_features_stay_together() -> None:
    batch = Feed(dataset(20), 4, 1, 2).train_batches(8)[0]
    np.testing.assert_array_equal(batch["twice"], 2 * batch["number"])


@settings(deadline=None)
@given(size=sizes, batch_size=batch_sizes, examples=st.integers(0, 60), in_parts=st.booleans())
def test_validation_examples_are_shared_out(size: int, batch_size: int, examples: int, *, in_parts: bool) -> None:
    shares = feeds(size, batch_size, dataset(5, examples))
    batches = [list(feed.validation_batches(in_parts=in_parts)) for feed in shares]
    sizes = [len(batch["number"]) for some in batches for batch in some]
    whole, rest = divmod(examples, batch_size)
    assert sorted(sizes, reverse=True) == [batch_size] * whole + [rest] * (rest > 0)
    seen = [-1 - number for some in batches for batch in some for number in batch["number"].tolist()]
    assert sorted(seen) == list(range(examples))
    counts = [len(some) for some in batches]
    assert max(counts) - min(counts) <= 1


@settings(deadline=None)
@given(size=sizes, batch_size=batch_sizes, batches=st.lists(st.integers(1, 9), min_size=1, max_size=7))
def test_validation_batches_of_the_data_stay_whole(size: int, batch_size: int, batches: list[int]) -> None:
    """The ranks' batches in the order of their numbers are the batches of the data."""
    numbers = np.arange(sum(batches))
    data = arrays_dataset(
        numbers, None, None, batch_size=3, shuffle=False, validation=numbers, validation_sizes=batches
    )
    read = {}
    for feed in [Feed(data, batch_size, rank, size) for rank in range(size)]:
        for own, batch in enumerate(feed.validation_batches(in_parts=False), start=1):
            read[feed.validation_number(own)] = batch["x"].tolist()
    assert list(sorted(read)) == list(range(1, len(batches) + 1))
    ends = np.cumsum(batches)
    assert [read[number] for number in sorted(read)] == [each.tolist() for each in np.split(numbers, ends[:-1])]


def rows(examples: int, batch: int, *, shuffle: bool) -> Arrays:
    """Rows that are their own numbers, in batches for all replicas."""
    numbers = np.arange(examples)
    return arrays_dataset({"number": numbers}, 2 * numbers, None, batch_size=batch, shuffle=shuffle).with_seed(4)


@settings(deadline=None)
@given(
    size=sizes,
    replicas=st.integers(1, 2),
    batch=st.integers(1, 9),
    examples=st.integers(1, 30),
    first=st.integers(0, 8),
    shuffle=st.booleans(),
)
def test_every_row_of_a_batch_trains_once(
    size: int, replicas: int, batch: int, examples: int, first: int, *, shuffle: bool
) -> None:
    """A run begins anywhere, and reads three passes from there. The replicas' rows in their order are the batch."""
    data = rows(examples, batch, shuffle=shuffle)
    all_replicas, batch_size = size * replicas, -(-batch // (size * replicas))
    ranks = [Feed(data, batch_size, rank, size, replicas) for rank in range(size)]
    steps = -(-examples // batch)
    assert data.train_size == steps * batch and data.notes == ()
    for step in range(first, first + 3 * steps):
        read = [one for feed in ranks for one in feed.train_batches(step * batch)]
        within = step % steps
        expected = data.train_batch(step * batch, batch)["number"]
        assert len(expected) == min(batch, examples - within * batch)
        if not ranks[0].is_uneven:
            assert all(SHARE not in one and len(one["number"]) == batch_size for one in read)
        trained = [one["number"] for one in read if one.get(SHARE, 1.0) > 0]
        np.testing.assert_array_equal(np.concatenate(trained), expected)
        for one in read:
            count = len(one["number"]) if one.get(SHARE, 1.0) else 0
            assert len(one["number"]) and one.get(SHARE, 1.0) == all_replicas * count / len(expected)
            np.testing.assert_array_equal(one["y"], 2 * one["number"])


@settings(deadline=None)
@given(batch=st.integers(2, 9), examples=st.integers(1, 30), position=st.integers(0, 90))
def test_a_position_of_a_run_with_another_batch_size(batch: int, examples: int, position: int) -> None:
    """Each step has rows, although the position need not be the start of a batch."""
    data = rows(examples, batch, shuffle=True)
    feeds = [Feed(data, batch, rank, 2) for rank in range(2)]
    read = [feed.train_batches(position)[0] for feed in feeds]
    if not feeds[0].is_uneven:
        return
    trained = [one["number"] for one in read if one[SHARE] > 0]
    np.testing.assert_array_equal(np.concatenate(trained), data.train_batch(position, batch)["number"])
    assert sum(one[SHARE] for one in read) == 2
