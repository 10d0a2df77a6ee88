"""A model that accepts one batch size evaluates each example once, if the value of a batch is a mean or a sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parallax_runner.train.metric_sums import Last, Sums
from parallax_runner.train.validation_rounds import Evaluated, Filling, Total, rounds_of, rows_of_examples

SIZE = 4
EXAMPLES = np.array([3.0, -1.0, 2.0, 5.0, 4.0, 0.5, 7.0])
OTHER = {"x": np.full(SIZE, 9.0)}
Loss = Callable[[np.ndarray], Any]


def evaluated(examples: np.ndarray, loss: Loss, size: int | None = SIZE) -> tuple[Evaluated, int, list[np.ndarray]]:
    """Returns the result of a rank, the number of examples that are left out, and the batches that it evaluated."""
    total, seen = Total(), []
    step = SIZE if size is None else size
    batches = [{"x": examples[start : start + step]} for start in range(0, len(examples), step)]
    for one in rounds_of(batches, size, lambda batch: len(batch["x"]), lambda: OTHER):
        x = one.batch["x"]
        seen.append(x)
        counts = np.array([len(x), (x > 2).sum()], np.float32)
        rows = rows_of_examples({"gauc": (x, x, x, x)}, one.examples, len(x))
        last = Last.of(one.number, len(x), [len(x) * x.mean()])
        of_batch = Sums.of([counts, np.float32(x.sum())], last=last)
        mean = float(loss(x))
        total.add(one, Evaluated(mean * len(x), len(x), of_batch, (rows,), abs(mean * len(x))))
    return *total.result(), seen


@pytest.mark.parametrize("rest", range(SIZE))
@pytest.mark.parametrize("size", [SIZE, None])
def test_each_example_counts_once(size: int | None, rest: int) -> None:
    examples = EXAMPLES[: SIZE + rest]
    found, left_out, seen = evaluated(examples, lambda x: np.square(x).mean(), size)
    assert (found.examples, left_out) == (len(examples), 0)
    assert found.loss_sum == pytest.approx(np.square(examples).sum())
    counts, total = found.sums.values
    np.testing.assert_array_equal(counts, [len(examples), (examples > 2).sum()])
    assert total == pytest.approx(examples.sum())
    assert found.sums.last.means == (pytest.approx((examples[SIZE:] if rest else examples).mean()),)
    of_groups = np.concatenate([rows["gauc"][1] for rows in found.rows])
    np.testing.assert_array_equal(of_groups[: len(examples)], examples)
    assert size is None or {len(x) for x in seen} == {SIZE}
    assert len(seen) == (1 + (rest > 0) if size is None else 1 + 4 * (rest > 0))


@pytest.mark.parametrize("rest", [1, 3])
def test_examples_are_left_out_if_their_value_is_unknown(rest: int) -> None:
    """A loss that compares each example with the largest one of the batch."""
    found, left_out, _ = evaluated(EXAMPLES[: SIZE + rest], lambda x: np.square(x - x.max()).mean())
    assert (found.examples, left_out) == (SIZE, rest)
    assert found.loss_sum == pytest.approx(np.square(EXAMPLES[:SIZE] - 5).sum())
    assert len(found.rows) == 1


def test_the_copies_are_of_two_different_examples() -> None:
    for rest in (1, 2):
        batches = [{"x": EXAMPLES[:rest]}]
        rounds = list(rounds_of(batches, SIZE, lambda batch: len(batch["x"]), lambda: OTHER))
        assert [one.filling for one in rounds] == [Filling.FIRST, Filling.FIRST, Filling.SECOND, Filling.SECOND]
        assert rounds[1].batch["x"][0] != rounds[3].batch["x"][0]
        assert [one.examples for one in rounds] == [rest, 0, rest, 0]


def test_rows_of_several_values_for_an_example() -> None:
    columns = tuple(np.arange(2 * SIZE) for _ in range(4))
    assert len(rows_of_examples({"m": columns}, 3, SIZE)["m"][0]) == 6
    assert rows_of_examples({"m": columns}, SIZE, SIZE)["m"] is columns
