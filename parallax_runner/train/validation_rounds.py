"""What a rank evaluates in a validation, round by round. In a round, each rank evaluates one batch.

The last examples can be fewer than a batch, and a model can accept batches of one size only. Then they are evaluated as
often as they fit in a batch, together with copies of one of them, and the copies alone: the value of a batch is a mean
or a sum over its examples, so the difference is the value of the last examples. A second way with other copies shows
whether that holds for the model.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from parallax_runner.errors import DataError
from parallax_runner.train.fillings import Filled, Filler
from parallax_runner.train.group_rows import Rows
from parallax_runner.train.metric_sums import NOTHING, Sums

Batch = dict[str, np.ndarray]
# Values of float32 that are computed in another order differ by less, and those of a loss that compares the examples of
# a batch by more.
AGREEMENT = 1e-4


class Way(enum.Enum):
    """In which batches examples are evaluated: in their own batch, or in one of two ways in filled batches."""

    OWN = "own"
    REPEATED = "repeated"
    HALVES = "halves"


@dataclass(frozen=True)
class Round:
    """A batch that a rank evaluates. Its result counts `times` times, and is then divided by `divisor`, which is the
    same for all rounds with this number and way. `examples` are the first ones of the batch whose rows count. `number`
    is the number of the batch among the rank's batches, counted from 1."""

    batch: Batch
    number: int
    examples: int
    times: int = 1
    divisor: int = 1
    way: Way = Way.OWN


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

    def times(self, factor: int) -> Evaluated:
        """Returns the same, counted `factor` times."""
        sums = self.sums.times(factor)
        return replace(self, loss_sum=factor * self.loss_sum, examples=factor * self.examples, sums=sums)

    def divided_by(self, divisor: int) -> Evaluated:
        """Returns one of `divisor` equal parts. A number of examples stays exact."""
        sums = self.sums.divided_by(divisor)
        return replace(self, loss_sum=self.loss_sum / divisor, examples=self.examples / divisor, sums=sums)

    def agrees_with(self, other: Self) -> bool:
        """Returns whether both are the same but for rounding."""
        pairs = zip(self.sums.values, other.sums.values, strict=True)
        near = _are_near(self.loss_sum, other.loss_sum, max(self.size, other.size))
        return near and all(_are_near(one, two, max(_largest(one), _largest(two), 1.0)) for one, two in pairs)


def _are_near(one: np.ndarray | float, other: np.ndarray | float, size: float) -> bool:
    """Values that are not finite are near each other, so that they are reported and not left out."""
    both = np.isfinite(one) & np.isfinite(other)
    neither = ~np.isfinite(one) & ~np.isfinite(other)
    with np.errstate(invalid="ignore"):
        near = both & (np.abs(np.subtract(one, other)) <= AGREEMENT * size)
    return bool(np.all(near | neither))


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0))


def rounds_of(batches: Iterable[Batch], filler: Filler) -> Iterator[Round]:
    """Yields the rounds for a rank's batches."""
    for number, batch in enumerate(batches, start=1):
        examples = filler.examples_in(batch)
        if filler.size is None or examples == filler.size:
            yield Round(batch, number, examples)
            continue
        for way, filled in {Way.REPEATED: filler.repeated(batch), Way.HALVES: filler.halves(batch)}.items():
            yield from _rounds(filled, number, way)


def _rounds(filled: Filled, number: int, way: Way) -> Iterator[Round]:
    for place, (batch, times) in enumerate(filled.batches):
        has_rows = way is Way.REPEATED and place == 0
        yield Round(batch, number, filled.examples if has_rows else 0, times, filled.divisor, way)


@dataclass
class Total:
    """Adds up the results of a rank's rounds."""

    _own: Evaluated = field(default_factory=Evaluated)
    _filled: dict[tuple[Way, int, int], Evaluated] = field(default_factory=dict)

    def add(self, one: Round, found: Evaluated) -> None:
        """Adds the result of a round."""
        if one.way is Way.OWN:
            self._own = self._own.plus(found)
            return
        key = one.way, one.number, one.divisor
        self._filled[key] = self._filled.get(key, Evaluated()).plus(found.times(one.times))

    def result(self) -> tuple[Evaluated, int]:
        """Returns the total, and the number of examples that are left out because their value is unknown."""
        rest, again = self._of(Way.REPEATED), self._of(Way.HALVES)
        if rest.agrees_with(again):
            return self._own.plus(rest), 0
        return self._own, int(rest.examples)

    def _of(self, way: Way) -> Evaluated:
        found = Evaluated()
        for (its_way, _, divisor), total in self._filled.items():
            if its_way is way:
                found = found.plus(total.divided_by(divisor))
        return found


def refusal(examples: int, size: int) -> DataError:
    """Returns the error for an evaluation that must count each example."""
    return DataError(
        f"the last {examples} examples cannot be evaluated: the model accepts only batches of {size}, and the value of "
        "a batch is no mean or sum over its examples. Set data.batch_size to a divisor of their number"
    )


def rows_of_examples(rows: Rows, examples: int, size: int) -> Rows:
    """Returns the rows of the first `examples` of a batch of `size` examples, each of which has as many rows."""
    if examples == size:
        return rows
    kept: dict[str, Sequence[np.ndarray]] = {}
    for name, columns in rows.items():
        kept[name] = [column[: len(column) // size * examples] for column in columns]
    return kept
