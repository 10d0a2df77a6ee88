"""The batches of a `tf.data.Dataset`: their size, their features, their number, and one worker's part of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.dataset import Feature
from parallax_runner.data.identity import FIRST_EXAMPLES
from parallax_runner.graph.components import components, count_rows, rows, with_long_splits
from parallax_runner.graph.tf_data.batch_spec import (
    PASSING,
    batch_size_of,
    feature_of_spec,
    is_endless,
    last_batching,
    static_size,
)
from parallax_runner.graph.tf_data.counting import Counting, counted
from parallax_runner.graph.tf_data.first_examples import digest_of_elements
from parallax_runner.graph.tf_data.fresh_copy import FreshCopies
from parallax_runner.graph.tf_data.length import output_of
from parallax_runner.graph.tf_data.repeatable import draws_order, seeds_of
from parallax_runner.graph.tf_data.stated_input import state_of_input


@dataclass(frozen=True, eq=False)
class Batches:
    """A dataset whose batches have `size` examples.

    `features` describes the parts of an element, and `structure` their positions. If only prefetching or options follow
    `batch`, `by_example` is True and `copies` yield single examples. Otherwise, `copies` yield batches, whose type
    states the size `static_size` or, if that is None, no size. `draws_order` says whether a shuffle or a random choice
    of datasets determines the order of the examples, and `seeds` are their seeds. `known` is the number of elements of
    `copies`, or a negative number if TensorFlow does not know it. `what` names the data in messages.
    """

    what: str
    structure: BatchStructure
    features: Mapping[str, Feature]
    size: int
    static_size: int | None
    by_example: bool
    is_endless: bool
    draws_order: bool
    seeds: str
    known: int
    copies: FreshCopies

    @classmethod
    def of(cls, dataset: Any, what: str) -> Batches:
        """Returns the batches of `dataset`. Raises DataError if their size or their shapes are unknown."""
        structure = BatchStructure.of(dataset.element_spec)
        specs = structure.flatten(dataset.element_spec)
        batched = last_batching(dataset, PASSING)
        features = {name: feature_of_spec(name, spec, what) for name, spec in specs.items()}
        static = static_size(specs)
        source = dataset if batched is None else batched._input_dataset.with_options(dataset.options())
        size = batch_size_of(dataset, batched, static, what)
        with eagerly():
            return cls(
                what=what,
                structure=structure,
                features=features,
                size=size,
                static_size=static,
                by_example=batched is not None,
                is_endless=is_endless(dataset),
                draws_order=draws_order(dataset),
                seeds=seeds_of(dataset),
                known=int(source.cardinality()),
                copies=FreshCopies.of(source, what),
            )

    @property
    def length_is_known(self) -> bool:
        """Whether the length of a pass is known without reading the data."""
        return self.known >= 0

    @property
    def is_counted_by_reading(self) -> bool:
        """Whether the examples of a pass can only be counted by reading them."""
        return not (self.length_is_known and self._is_of_equal_elements)

    def count(self) -> int:
        """Returns the number of examples in a pass."""
        return self._counted[0]

    def count_steps(self) -> tuple[int, int]:
        """Returns the number of whole batches in a pass, and the number of examples left over."""
        found, in_whole = self._counted
        return in_whole // self.size, found - in_whole

    def has(self, examples: int) -> bool:
        """Returns whether a pass has at least `examples` examples. Reads no further than necessary."""
        if not self.is_counted_by_reading:
            return self.count() >= examples
        found, scale = 0, self.size if self.static_size is not None and not self.by_example else 1
        with eagerly():
            for number in self._numbers(most=examples):
                found += number * scale
                if found >= examples:
                    return True
        return False

    def digest_of_first(self) -> str:
        """Returns a digest of the first examples, which does not depend on the shuffles and the batch size."""
        with eagerly():
            copy = self.copies.unshuffled()
            examples = copy if self.by_example else copy.unbatch()
            return digest_of_elements(examples.take(FIRST_EXAMPLES))

    def arrays(self, element: Any) -> dict[str, np.ndarray]:
        """Returns the arrays of a batch by component name (see `Feature`)."""
        features = self.structure.flatten(element).items()
        return {
            component: tensor.numpy()
            for name, batch in features
            for component, tensor in components(name, with_long_splits(batch)).items()
        }

    def part(self, rank: int, ranks: int) -> Any:
        """Returns the batches of one rank from a fresh copy. They contain every `ranks`-th example of each whole batch.
        If examples are left over, some ranks can get an additional batch at the end, which no step uses."""
        if self.by_example:
            return self.copies.make(rank, ranks).batch(self.size // ranks, drop_remainder=True)
        copy = self.copies.make()
        if self.static_size is None:
            copy = copy.filter(lambda *batch: self._rows(_one(batch)) == self.size)
        return copy.map(lambda *batch: every(_one(batch), rank, ranks))

    def first(self, size: int) -> Any:
        """Returns batches from a fresh copy without shuffles. The first batch has at least `size` examples."""
        copy = self.copies.unshuffled()
        if self.by_example:
            return copy.batch(size, drop_remainder=True)
        return copy.filter(lambda *batch: self._rows(_one(batch)) >= size)

    def in_parts(self, copy: Any, size: int, rank: int, ranks: int, *, whole_only: bool) -> Any:
        """Returns the batches of one rank: every `ranks`-th batch of `size` examples. `whole_only` drops a smaller last
        batch."""
        elements = copy if self.by_example else copy.unbatch()
        return elements.batch(size, drop_remainder=whole_only).shard(ranks, rank)

    def _rows(self, element: Any) -> Any:
        """Returns the number of examples in a batch as an int64 scalar."""
        return count_rows(next(iter(self.structure.flatten(element).values())))

    @functools.cached_property
    def _counted(self) -> tuple[int, int]:
        """The number of examples in a pass, and the number of these examples that are in whole batches.

        Reads a pass if TensorFlow cannot determine these numbers.
        """
        if not self._is_of_equal_elements:
            return self._read("examples", self.size)
        elements = self.known
        if not self.length_is_known:
            elements = self._read("examples" if self.by_example else "batches", 1)[0]
        found = elements if self.by_example else elements * self.size
        return found, found // self.size * self.size

    @property
    def _is_of_equal_elements(self) -> bool:
        """Whether each element of `copies` has the same number of examples."""
        return self.by_example or self.static_size is not None

    def _numbers(self, most: int | None = None) -> Iterator[int]:
        """Reads a pass, and yields numbers of elements or, if elements differ in size, the size of each. Reads at most
        `most` elements."""
        if self._is_of_equal_elements:
            yield from self.copies.counts(most)
            return
        copy = self.copies.make() if most is None else self.copies.make().take(most)
        for size in copy.map(lambda *batch: self._rows(_one(batch))):
            yield int(size)

    def _read(self, unit: str, size: int) -> tuple[int, int]:
        """Counts `unit` by reading a pass, unless an earlier run has done so."""
        counting = Counting(self.what, unit, size, self._numbers, self._state, self._remedy)
        with eagerly():
            return counted(counting)

    def _state(self) -> list[Any]:
        copies = self.copies
        output = copies.counted_output if self._is_of_equal_elements else output_of(copies.graph_def)
        return state_of_input(copies.graph_def, output, copies.large)

    @property
    def _remedy(self) -> str:
        """How a user avoids the count."""
        if not self._is_of_equal_elements:
            return "To read less, set drop_remainder=True in batch"
        stated = "with .apply(tf.data.experimental.assert_cardinality(N))"
        place = "before batch" if self.by_example else "after batch"
        return f"To avoid this, state the number N of {'examples' if self.by_example else 'batches'} {stated} {place}"


@contextmanager
def eagerly() -> Iterator[None]:
    """Runs the `with` block eagerly and on the CPU, regardless of the default graph."""
    with context.eager_mode(), tf.device("CPU:0"):
        yield


def every(batch: Any, first: int, step: int) -> Any:
    """Returns every `step`-th example of a batch, with all features, starting with example `first`."""
    return tf.nest.map_structure(lambda each: rows(each, first, step=step), batch)


def _one(batch: tuple[Any, ...]) -> Any:
    """Returns the element that was passed to a map's function, either as one argument or as one argument per part."""
    return batch[0] if len(batch) == 1 else batch
