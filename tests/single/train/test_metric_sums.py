"""Sums of metrics do not depend on the groups in which a run adds them."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from parallax_runner.train.metric_sums import NOTHING, Last, Sums


def grouped(numbers: np.ndarray, ends: list[int]) -> Sums:
    """Adds numbers in groups, as the reports of a rank, and then adds the groups."""
    parts = np.split(numbers, ends)
    return Sums.total(Sums.total(Sums.of([number]) for number in part) for part in parts)


@pytest.mark.parametrize("seed", range(20))
def test_other_groups_give_the_same_bits(seed: int) -> None:
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=300) * 10.0 ** draw.integers(-8, 8, 300)
    exact = float(sum(map(Fraction, numbers.tolist()), Fraction()))
    for _ in range(5):
        ends = sorted(draw.integers(0, 300, 12).tolist())
        (found,) = grouped(numbers, ends).values
        assert found.tolist() == exact
    assert float(np.sum(numbers)) != exact or seed  # float64 alone differs, at least for the first seed


def test_sums_go_through_a_sidecar() -> None:
    sums = Sums.total(Sums.of([0.1, [1.0, 0.3]]) for _ in range(7))
    again = Sums.of_fields(json.loads(json.dumps(sums.fields())))
    assert again.fields() == sums.fields()
    assert any(np.any(rest) for rest in again.rests)
    assert Sums.of_fields({}) == NOTHING and NOTHING.fields() == {}


@pytest.mark.parametrize(
    ("numbers", "total"), [([np.inf, 1.0], np.inf), ([1.0, -np.inf], -np.inf), ([1e308] * 3, np.inf)]
)
def test_an_infinite_sum_stays_infinite(numbers: list[float], total: float) -> None:
    sums = Sums.total(Sums.of([number]) for number in [*numbers, 2.0])
    assert sums.values[0] == total


def test_nan_stays_nan() -> None:
    assert np.isnan(Sums.of([np.nan]).plus(Sums.of([1.0])).values[0])


def test_of_values_of_a_step_the_newest_step_counts() -> None:
    ranks = [Sums.of([1.0], last=Last.of(3, 1, [5.0])), Sums.of([2.0], last=Last.of(4, 2, [8.0]))]
    total = Sums.total([*ranks, NOTHING, Sums.of([], last=Last.of(4, 1, [1.0]))])
    assert (total.values, total.last) == ([3.0], Last(4, 3, (9.0,)))
    assert total.last.means == (3.0,)
    assert Sums.of_fields(json.loads(json.dumps(total.fields()))) == total
    assert Sums.of([1.0], last=Last.of(5, 1, [])).last == NOTHING.last == Last()


def test_values_of_a_step_alone_are_not_empty() -> None:
    alone = Sums.of([], last=Last.of(1, 1, [2.0]))
    assert not alone.is_empty and NOTHING.is_empty
    assert alone.fields() == {"metric_last": [1, 1, [2.0]]}
