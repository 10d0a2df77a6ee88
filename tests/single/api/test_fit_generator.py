"""A generator as training data: its batches are read once, in order, also over several calls of `fit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from parallax_runner.api.fit_data import dataset_of
from parallax_runner.api.fit_generator import GeneratedBatches
from parallax_runner.errors import ConfigError, DataError
from parallax_runner.shipment.data_files import why_data_stays
from parallax_runner.train.feed import Feed
from tests.single.api.test_fit import GIVEN


def counted(batches: int, size: int = 4) -> Iterator[Any]:
    """Yields batches of successive numbers as features and labels."""
    for number in range(batches):
        rows = np.arange(size * number, size * (number + 1))
        yield rows[:, None], rows


def made(train: Any, **more: Any) -> Any:
    return dataset_of(train, None, **{**GIVEN, "shuffle": True, "steps_per_epoch": 3, **more})


def read(data: Any, steps: int) -> list[list[int]]:
    """Returns the labels of the first steps of a worker."""
    feed = Feed(data, 4, 0, 1)
    return [feed.train_batches(4 * step)[0]["y"].tolist() for step in range(steps)]


def test_the_batches_are_read_in_order_and_each_of_them_once() -> None:
    data = made(counted(6))
    assert data.is_endless and "a generator, which calls Python code" in str(why_data_stays(data))
    assert read(data, 6) == [list(range(4 * step, 4 * step + 4)) for step in range(6)]
    with pytest.raises(DataError, match="ended after 6 batches, but each step needs one"):
        data.step_batch(6)
    with pytest.raises(DataError, match="batch 3 of the generator is gone"):
        data.step_batch(3)


def test_a_later_call_of_fit_goes_on_with_the_same_generator() -> None:
    given = counted(8)
    first = made(given)
    assert read(first, 3)[-1] == [8, 9, 10, 11]
    second = made(given).after(3)
    assert read(second, 2) == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert read(made(counted(8)), 1) == [[0, 1, 2, 3]]


def test_a_worker_that_joins_later_leaves_out_the_earlier_batches() -> None:
    feed = Feed(made(counted(8)), 4, 0, 1)
    assert feed.train_batches(4 * 5)[0]["y"].tolist() == [20, 21, 22, 23]


def test_what_was_read_before_counts_from_the_start_of_the_generator() -> None:
    given = counted(4)
    assert GeneratedBatches(given)[2][1].tolist() == [8, 9, 10, 11]
    again = GeneratedBatches(given)
    assert again[0][1].tolist() == [0, 1, 2, 3]
    assert again[3][1].tolist() == [12, 13, 14, 15]


def one_dict() -> Iterator[Any]:
    yield {"x": np.ones([2, 1])}


@pytest.mark.parametrize(
    ("given", "more", "error", "said"),
    [
        (counted(3), {"steps_per_epoch": None}, ConfigError, "steps_per_epoch=None .*the data never ends"),
        (counted(0), {}, DataError, "has no batches"),
        (one_dict(), {}, ConfigError, "yields a dict; expected a tuple"),
        (counted(3), {"batch_size": 4}, ConfigError, "a generator already contains it; remove batch_size"),
        (counted(3), {"validation_data": counted(3)}, ConfigError, "validation_data .*a generator has other batches"),
    ],
)
def test_what_cannot_be_trained(given: Any, more: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        made(given, **more)
