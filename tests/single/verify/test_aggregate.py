"""Merging and averaging, by hand."""

import numpy as np
import pytest

from parallax_runner.verify.aggregate import mean, merge


def test_ids_are_merged_within_and_across_ranks() -> None:
    pieces = [
        (np.array([5, 2, 5], np.int32), np.array([[1, 2], [3, 4], [5, 6]], np.float32)),
        (np.array([2, 0], np.int32), np.array([[10, 20], [30, 40]], np.float32)),
    ]
    ids, rows = merge(pieces, average=False)
    assert ids.tolist() == [0, 2, 5]
    assert rows.tolist() == [[30, 40], [13, 24], [6, 8]]
    assert (ids.dtype, rows.dtype) == (np.int32, np.float32)
    _, averaged = merge(pieces, average=True)
    assert averaged.tolist() == [[15, 20], [6.5, 12], [3, 4]]


def test_a_rank_without_rows_still_counts() -> None:
    nothing = (np.zeros(0, np.int64), np.zeros((0, 2)))
    ids, rows = merge([(np.array([3]), np.array([[4.0, 8.0]])), nothing], average=True)
    assert (ids.tolist(), rows.tolist()) == ([3], [[2, 4]])
    ids, rows = merge([nothing, nothing], average=True)
    assert (ids.shape, rows.shape) == ((0,), (0, 2))


def test_rows_may_be_scalars() -> None:
    ids, rows = merge([(np.array([1, 1]), np.array([2.0, 3.0]))], average=True)
    assert (ids.tolist(), rows.tolist()) == ([1], [5])


def test_sums_are_rounded_once() -> None:
    """In float32, adding 1 to 2**24 changes nothing."""
    numbers = [np.float32(2**24), np.float32(1), np.float32(1)]
    assert mean([np.array([number]) for number in numbers]) == np.float32((2**24 + 2) / 3)
    _, rows = merge([(np.zeros(3, np.int64), np.array(numbers)[:, None])], average=False)
    assert rows == np.float32(2**24 + 2)


def test_a_mean_keeps_the_dtype_and_does_not_broadcast() -> None:
    averaged = mean([np.float32(1), np.float32(2)])
    assert (averaged, averaged.dtype, averaged.shape) == (1.5, np.float32, ())
    with pytest.raises(ValueError, match="shape"):
        mean([np.zeros((2, 3)), np.zeros((1, 3))])
