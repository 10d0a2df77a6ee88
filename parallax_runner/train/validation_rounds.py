"""What a rank evaluates in a validation, round by round. In a round, each rank evaluates one batch.

The last examples can be fewer than a batch, and a model can accept batches of one size only. Then they are evaluated
together with copies of one example, and the copies alone: the value of a batch is a mean or a sum over its examples, so
the difference is the value of the last examples. Whether that holds for the model shows a second time, with copies of
another example.
"""

from __future__ import annotations

import enum
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from parallax_runner.train.group_rows import Rows
from parallax_runner.train.metric_sums import NOTHING, Sums

log = logging.getLogger(__name__)
Batch = dict[str, np.ndarray]
# Values of float32 that are computed in another order differ by less, and those of a loss that compares the examples of
# a batch by more.
AGREEMENT = 1e-4


class Filling(enum.Enum):
    """With which copies a round fills its batch."""

    NONE = "none"
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True)
class Round:
    """A batch that a rank evaluates, whose result counts `factor` times. `examples` are the first ones of the batch
    whose rows count. `number` is the number of the batch among the rank's batches, counted from 1."""

    batch: Batch
    number: int
    examples: int
    factor: float = 1.0
    filling: Filling = Filling.NONE


@dataclass(frozen=True)
class Evaluated:
    """The sum of the losses of examples, their number, the sums of the metrics, and rows of metrics of groups that are
    not written yet. `size` is the largest magnitude of the loss sums that were added."""

    loss_sum: float = 0.0
    examples: float = 0.0
    sums: Sums = NOTHING
    rows: tuple[Rows, ...] = ()
    size: float = 0.0

    def plus(self, more: Evaluated) -> Evaluated:
        """Returns the total."""
        return Evaluated(
            self.loss_sum + more.loss_sum,
            self.examples + more.examples,
            self.sums.plus(more.sums),
            (*self.rows, *more.rows),
            max(self.size, more.size),
        )

    def agrees_with(self, other: Self) -> bool:
        """Returns whether both are the same but for rounding."""
        pairs = zip(self.sums.values, other.sums.values, strict=True)
        near = abs(self.loss_sum - other.loss_sum) <= AGREEMENT * max(self.size, other.size)
        return near and all(np.abs(one - two).max(initial=0) <= AGREEMENT * _largest(one, two) for one, two in pairs)


def _largest(one: np.ndarray, other: np.ndarray) -> float:
    return float(max(np.abs(one).max(initial=0), np.abs(other).max(initial=0), 1.0))


def rounds_of(
    batches: Iterable[Batch], size: int | None, examples_in: Callable[[Batch], int], any_batch: Callable[[], Batch]
) -> Iterator[Round]:
    """Yields the rounds for a rank's batches. `size` is the only batch size that the model accepts, or None if it
    accepts any. `any_batch` returns a batch of other examples."""
    for number, batch in enumerate(batches, start=1):
        examples = examples_in(batch)
        if size is None or examples == size:
            yield Round(batch, number, examples)
            continue
        other = _row(batch, 0) if examples > 1 else _row(any_batch(), 0)
        copied = {Filling.FIRST: _row(batch, examples - 1), Filling.SECOND: other}
        for filling, row in copied.items():
            copies = {name: np.repeat(array, size, axis=0) for name, array in row.items()}
            filled = {name: np.concatenate([array, copies[name][examples:]]) for name, array in batch.items()}
            yield Round(filled, number, examples, 1.0, filling)
            yield Round(copies, number, 0, (examples - size) / size, filling)


def _row(batch: Batch, row: int) -> Batch:
    return {name: array[row : row + 1] for name, array in batch.items()}


@dataclass
class Total:
    """Adds up the results of a rank's rounds."""

    _by_filling: dict[Filling, Evaluated] = field(default_factory=lambda: dict.fromkeys(Filling, Evaluated()))

    def add(self, one: Round, found: Evaluated) -> None:
        """Adds the result of a round."""
        scaled = replace(
            found,
            loss_sum=one.factor * found.loss_sum,
            examples=one.factor * found.examples,
            sums=found.sums.times(one.factor),
        )
        self._by_filling[one.filling] = self._by_filling[one.filling].plus(scaled)

    def result(self) -> tuple[Evaluated, int]:
        """Returns the total, and the number of examples that are left out because their value is unknown."""
        whole, rest, again = (self._by_filling[one] for one in Filling)
        if rest.agrees_with(again):
            return whole.plus(replace(rest, examples=round(rest.examples))), 0
        return whole, round(rest.examples)


def tell_left_out(examples: int, size: int) -> None:
    """Tells the user that a rank's last examples are not evaluated."""
    text = (
        f"the last {examples} validation examples are left out: the model accepts only batches of {size}, and the "
        "value of a batch is no mean or sum over its examples. Set data.batch_size to a divisor of their number"
    )
    log.warning("%s", text)
    print(f"parallax_runner: {text}", file=sys.stderr)


def rows_of_examples(rows: Rows, examples: int, size: int) -> Rows:
    """Returns the rows of the first `examples` of a batch of `size` examples, each of which has as many rows."""
    if examples == size:
        return rows
    kept: dict[str, Sequence[np.ndarray]] = {}
    for name, columns in rows.items():
        kept[name] = [column[: len(column) // size * examples] for column in columns]
    return kept
