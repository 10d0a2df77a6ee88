"""Fills batches with copies of examples, for a model that accepts batches of one size only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from parallax_runner.data.batch_rows import joined, taken
from parallax_runner.data.dataset import Feature, examples_in

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Filled:
    """Whole batches, each with the number of times that its result counts. The total divided by `divisor` is the result
    of the `examples` examples that were filled."""

    batches: list[tuple[Batch, int]]
    divisor: int
    examples: int


@dataclass(frozen=True)
class Filler:
    """`size` is the only batch size that the model accepts, or None if it accepts any. `features` are those of a
    validation batch, and `any_batch` returns a batch of other examples."""

    size: int | None
    features: Mapping[str, Feature]
    any_batch: Callable[[], Batch]

    def examples_in(self, batch: Batch) -> int:
        """Returns the number of examples in a batch."""
        return examples_in(batch, self.features)

    def repeated(self, batch: Batch) -> Filled:
        """Returns the examples as often as they fit in a batch, then copies of the last one; and the copies alone.

        Repeating makes the difference precise: it is not small beside the results of the two batches.
        """
        size, examples = self._sizes(batch)
        often, copies = divmod(size, examples)
        last = examples - 1
        whole = taken(batch, self.features, [*range(examples)] * often + [last] * copies)
        if not copies:
            return Filled([(whole, 1)], often, examples)
        alone = taken(batch, self.features, [last] * size)
        return Filled([(whole, size), (alone, -copies)], size * often, examples)

    def halves(self, batch: Batch) -> Filled:
        """Returns each half of the examples with copies of another example; and the copies alone."""
        size, examples = self._sizes(batch)
        source, copied = self._with_other(batch, examples)
        half = -(-examples // 2)
        parts = [range(half), range(half, examples)]
        wholes = [
            taken(source, self.features, [*part] + [copied] * (size - len(part))) for part in parts if len(part) > 0
        ]
        alone = taken(source, self.features, [copied] * size)
        copies = len(wholes) * size - examples
        return Filled([*((whole, size) for whole in wholes), (alone, -copies)], size, examples)

    def _sizes(self, batch: Batch) -> tuple[int, int]:
        assert self.size is not None
        return self.size, self.examples_in(batch)

    def _with_other(self, batch: Batch, examples: int) -> tuple[Batch, int]:
        """Returns a batch that begins with these examples, and the row of an example in it that differs from the last
        one."""
        source = joined(batch, self.any_batch(), self.features)
        last = taken(batch, self.features, [examples - 1])
        others = [row for row in range(self.examples_in(source)) if row != examples - 1]
        differ = (row for row in others if not _are_equal(taken(source, self.features, [row]), last))
        return source, next(differ, others[0])


def _are_equal(one: Batch, other: Batch) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in one.items())
