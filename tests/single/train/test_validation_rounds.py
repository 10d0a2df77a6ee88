"""A model that accepts one batch size evaluates each example once, if the value of a batch is a mean or a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from parallax_runner.data.dataset import Feature
from parallax_runner.train.fillings import Filler
from parallax_runner.train.metric_sums import Last, Sums
from parallax_runner.train.validation_rounds import Evaluated, Total, Way, rounds_of, rows_of_examples

SIZE = 7
EXAMPLES = np.array([3.0, -1.0, 2.0, 5.0, 4.0, 0.5, 7.0, 6.0, -2.0, 1.5, 8.0, 0.25, -3.5])
OTHER = {"x": np.array([9.0, 10.0])}
Loss = Callable[[np.ndarray], Any]


def filler(size: int | None = SIZE) -> Filler:
    return Filler(size, {"x": Feature((), "float64")}, lambda: OTHER)


def evaluated(parts: Sequence[np.ndarray], loss: Loss, size: int | None = SIZE) -> tuple[Evaluated, int, list[Any]]:
    """Returns the result of a rank, the number of examples that are left out, and the batches that it evaluated."""
    total, seen = Total(), []
    for one in rounds_of([{"x": part} for part in parts], filler(size)):
        x = one.batch["x"]
        seen.append(x)
        counts = np.array([len(x), (x > 2).sum()], np.float32)
        rows = rows_of_examples({"gauc": (x, x, x, x)}, one.examples, len(x))
        last = Last.of(one.number, len(x), [len(x) * x.mean()])
        of_batch = Sums.of([counts, np.float32(x.sum())], last=last)
        mean = float(loss(x))
        total.add(one, Evaluated(mean * len(x), len(x), of_batch, (rows,), abs(mean * len(x))))
    return *total.result(), seen


def squares(x: np.ndarray) -> Any:
    return np.square(x).mean()


@pytest.mark.parametrize("rest", range(SIZE))
@pytest.mark.parametrize("size", [SIZE, None])
def test_each_example_counts_once(size: int | None, rest: int) -> None:
    examples = EXAMPLES[: SIZE + rest]
    parts = [examples[:SIZE], examples[SIZE:]][: 1 + (rest > 0)]
    found, left_out, seen = evaluated(parts, squares, size)
    assert (found.examples, left_out) == (len(examples), 0)
    assert found.loss_sum == pytest.approx(np.square(examples).sum())
    counts, total = found.sums.values
    np.testing.assert_array_equal(counts, [len(examples), (examples > 2).sum()])
    assert total == pytest.approx(examples.sum())
    assert found.sums.last.means == (pytest.approx(parts[-1].mean()),)
    of_groups = np.concatenate([rows["gauc"][1] for rows in found.rows])
    np.testing.assert_array_equal(of_groups, examples)
    assert size is None or {len(x) for x in seen} == {SIZE}
    assert len(seen) <= 6 if size else len(seen) == len(parts)


def test_several_batches_are_smaller() -> None:
    """As where batches differ in shape."""
    parts = np.split(EXAMPLES, [2, 9, 10, 12])
    found, left_out, _ = evaluated(parts, squares)
    assert (found.examples, left_out) == (len(EXAMPLES), 0)
    assert found.loss_sum == pytest.approx(np.square(EXAMPLES).sum())
    np.testing.assert_array_equal(found.sums.values[0], [len(EXAMPLES), (EXAMPLES > 2).sum()])


@pytest.mark.parametrize(("size", "rest"), [(512, 1), (511, 3), (4096, 7)])
def test_few_examples_in_large_batches_of_float32_are_precise(size: int, rest: int) -> None:
    x = np.linspace(0.1, 0.9, rest, dtype=np.float32)
    found, left_out, _ = evaluated([x], squares, size)
    assert (found.examples, left_out) == (rest, 0)
    assert found.loss_sum == pytest.approx(np.square(x.astype(float)).sum(), rel=2e-6)
    np.testing.assert_array_equal(found.sums.values[0], [rest, 0])


def weighted_mean(x: np.ndarray) -> Any:
    """The weight of a number is its square, so that of zero is zero."""
    weights = 1 + np.square(x)
    return (weights * x).sum() / weights.sum()


@pytest.mark.parametrize("loss", [lambda x: squares(x - x.max()), weighted_mean, lambda x: np.ptp(x)])
@pytest.mark.parametrize("rest", [1, 2, 3, 6])
def test_examples_are_left_out_if_their_value_is_unknown(rest: int, loss: Loss) -> None:
    found, left_out, _ = evaluated([EXAMPLES[:SIZE], EXAMPLES[SIZE : SIZE + rest]], loss)
    assert (found.examples, left_out) == (SIZE, rest)
    assert found.loss_sum == pytest.approx(SIZE * loss(EXAMPLES[:SIZE]))
    assert len(found.rows) == 1


@pytest.mark.parametrize("rest", [[0.0, 4.0, 0.0], [0.0, 4.0, 2.0, 0.0], [0.0, 0.0, 4.0]])
def test_equal_examples_hide_nothing(rest: list[float]) -> None:
    """The first and the last example are equal, and have the value 0."""
    _, left_out, _ = evaluated([np.array(rest)], weighted_mean)
    assert left_out == len(rest)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rest", [1, 3])
def test_a_value_that_is_not_finite_is_reported(rest: int, value: float) -> None:
    examples = EXAMPLES[:rest].copy()
    examples[0] = value
    found, left_out, _ = evaluated([examples], squares)
    assert (found.examples, left_out) == (rest, 0)
    assert not np.isfinite(found.loss_sum)


@pytest.mark.parametrize("rest", [1, 2, 5])
def test_the_copies_are_of_two_different_examples(rest: int) -> None:
    rounds = list(rounds_of([{"x": np.concatenate([[1.0], EXAMPLES[: rest - 1]])}], filler()))
    alone = {one.way: set(one.batch["x"]) for one in rounds if one.times < 0}
    both = [alone[way] for way in (Way.REPEATED, Way.HALVES) if way in alone]
    assert all(len(one) == 1 for one in both)
    assert len(both) == len({*map(tuple, both)})
    assert sum(one.examples for one in rounds) == rest


def test_rows_of_several_values_for_an_example() -> None:
    columns = tuple(np.arange(2 * SIZE) for _ in range(4))
    assert len(rows_of_examples({"m": columns}, 3, SIZE)["m"][0]) == 6
    assert rows_of_examples({"m": columns}, SIZE, SIZE)["m"] is columns
