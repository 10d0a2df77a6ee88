"""Buckets of numbers that are filled, limited, logged and standardized first: training and serving agree."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.kinds import columns_of
from parallax_runner.data.table.columns.number import Number, smallest_reaching

BOUNDARIES = [-1.0, -1e-3, 0.0, 0.1, 0.7, 2.5, 30.0]
SETTINGS = {"fill": 0.3, "clip": [-5, 50], "log": True, "standardize": True}
COMBINATIONS = [chosen for count in range(5) for chosen in itertools.combinations(SETTINGS, count)]


def column_with(words):
    (column,) = columns_of({"x": {"number": {"buckets": BOUNDARIES, **{word: SETTINGS[word] for word in words}}}})
    assert isinstance(column, Number)
    return column


def near(numbers):
    """The numbers, and the next float32 numbers above and below them."""
    finite = numbers[np.isfinite(numbers)]
    return np.concatenate([finite, *(np.nextafter(finite, np.float32(to)) for to in (np.inf, -np.inf))])


def numbers_for(draws):
    some = (draws.normal(size=500) * 10.0 ** draws.integers(-6, 5, 500)).astype(np.float32)
    special = np.array([0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 3e38, -3e38], np.float32)
    return np.concatenate([some, special])


@pytest.mark.parametrize("words", COMBINATIONS)
def test_training_and_serving_give_the_same_ids(words):
    column = column_with(words)
    counting = column.counting(None)
    counting.add(Cells(numbers_for(np.random.default_rng(1))[:400]))
    state = counting.state()
    boundaries = column.lookup(state, None)
    numbers = np.concatenate([numbers_for(np.random.default_rng(2)), near(boundaries)])
    if column.fill is not None:
        numbers = np.append(numbers, np.float32(np.nan))
    trained = column.features(state, Cells(numbers), boundaries)[""]
    served = column.served(state, None, tf.constant(numbers), tf)[""].numpy()
    np.testing.assert_array_equal(served, trained)
    assert trained.dtype == served.dtype == np.int64
    # Away from a boundary, the id is the one of the feature without buckets.
    (plain,) = columns_of({"x": {"number": {word: SETTINGS[word] for word in words}}})
    values = plain.features(state, Cells(numbers), None)[""].astype(np.float64)
    distances = np.abs(values[:, None] - BOUNDARIES).min(axis=1)
    is_clear = distances > 1e-5
    expected = np.searchsorted(BOUNDARIES, values, side="right")
    np.testing.assert_array_equal(trained[is_clear], expected[is_clear])
    assert is_clear.sum() > 150 and len(set(trained)) > 2


def test_the_smallest_number_that_reaches_a_value():
    values = np.array([-2.0, 0.5, 3.0], np.float32)
    np.testing.assert_array_equal(smallest_reaching(values, lambda numbers: numbers), values)
    np.testing.assert_array_equal(smallest_reaching(values, lambda numbers: numbers * 2), values / 2)
    found = smallest_reaching(values, lambda numbers: np.clip(numbers, 0, 1))
    np.testing.assert_array_equal(found, np.array([-np.inf, 0.5, np.inf], np.float32))
