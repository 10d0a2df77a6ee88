"""The batches of a `tf.data.Dataset`: their size, their features, their number, and one worker's part of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
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
    feature_of_spec,
    is_endless,
    last_batching,
    size_of_first,
    stated_size,
    static_size,
    yields_full_batches,
)
from parallax_runner.graph.tf_data.counting import Counting, counted
from parallax_runner.graph.tf_data.first_examples import digest_of_elements
from parallax_runner.graph.tf_data.fresh_copy import FreshCopies
from parallax_runner.graph.tf_data.length import output_of
from parallax_runner.graph.tf_data.repeatable import draws_order, seeds_of
from parallax_runner.graph.tf_data.stated_input import state_of_input

TO_READ_LESS = "To read less, set drop_remainder=True in batch"


@dataclass(frozen=True, eq=False)
class Batches:
    """A dataset whose full batches have `size` examples.

    `features` describes the parts of an element, and `structure` their positions. If only prefetching or options follow
    `batch`, `by_example` is True and `copies` yield single examples. Otherwise, `copies` yield batches, whose type
    states the size `static_size` or, if that is None, no size. `has_common_size` is False if no transformation states
    `size`, which then is the size of the first batch. `is_full` says whether each batch is known to be full.
    `draws_order` says whether a shuffle or a random choice of datasets determines the order of the examples, and
    `seeds` are their seeds. `known` is the number of elements of `copies`, or a negative number if TensorFlow does not
    know it. `what` names the data in messages.
    """

    what: str
    structure: BatchStructure
    features: Mapping[str, Feature]
    size: int
    static_size: int | None
    has_common_size: bool
    is_full: bool
    by_example: bool
    is_endless: bool
    draws_order: bool
    seeds: str
    known: int
    copies: FreshCopies

    @classmethod
    def of(cls, dataset: Any, what: str) -> Batches:
        """Returns the batches of `dataset`. Reads one batch if no transformation states their size.

        Raises DataError if the dataset has no batches, or a feature that cannot be distributed.
        """
        structure = BatchStructure.of(dataset.element_spec)
        specs = structure.flatten(dataset.element_spec)
        batched = last_batching(dataset, PASSING)
        features = {name: feature_of_spec(name, spec, what) for name, spec in specs.items()}
        static = static_size(specs)
        source = dataset if batched is None else batched._input_dataset.with_options(dataset.options())
        stated = stated_size(dataset, batched, static, what)
        with eagerly():
            copies = FreshCopies.of(source, what)
            size = size_of_first(copies.unshuffled(), structure.flatten, what) if stated is None else stated
            return cls(
                what=what,
                structure=structure,
                features=features,
                size=size,
                static_size=static,
                has_common_size=stated is not None,
                is_full=static is not None or yields_full_batches(dataset),
                by_example=batched is not None,
                is_endless=is_endless(dataset),
                draws_order=draws_order(dataset),
                seeds=seeds_of(dataset),
                known=int(source.cardinality()),
                copies=copies,
            )

    @property
    def length_is_known(self) -> bool:
        """Whether the length of a pass is known without reading the data."""
        return self.known >= 0

    @property
    def is_counted_by_reading(self) -> bool:
        """Whether the examples of a pass can only be counted by reading them."""
        return not (self.length_is_known and self._is_of_equal_elements)

    @property
    def drops_rest(self) -> bool:
        """Whether the data itself omits the examples that do not fill a batch."""
        return self.static_size is not None

    @property
    def has_varying_shapes(self) -> bool:
        """Whether the examples of two batches can have different shapes, although they are dense."""
        return any(feature.kind == "dense" and None in feature.shape for feature in self.features.values())

    def count(self) -> int:
        """Returns the number of examples in a pass."""
        return self._counted[0]

    def count_batches(self) -> int:
        """Returns the number of batches in a pass, including partial batches, unless the data itself drops them."""
        if not self.by_example:
            return self._elements
        return self._elements // self.size if self.drops_rest else -(-self._elements // self.size)

    def count_whole(self) -> tuple[int, int]:
        """Returns the number of whole batches in a pass, and the number of examples left over."""
        found, in_whole = self._counted
        return in_whole // self.size, found - in_whole

    def has(self, examples: int) -> bool:
        """Returns whether a pass has at least `examples` examples. Reads no further than necessary."""
        if not self.is_counted_by_reading:
            return self.count() >= examples
        found, scale = 0, self.size if self.is_full and not self.by_example else 1
        with eagerly():
            for number in self._numbers(most=examples):
                found += number * scale
                if found >= examples:
                    return True
        return False

    def count_in_batches(self) -> int:
        """Returns the number of examples in the batches of a pass, without those that the data itself drops."""
        if not (self.by_example and self.drops_rest):
            return self.count()
        return self.count_whole()[0] * self.size

    def has_in_batches(self, examples: int) -> bool:
        """Returns whether the batches of a pass have at least `examples` examples. Reads no further than necessary."""
        if not self.drops_rest:
            return self.has(examples)
        return self.has(-(-examples // self.size) * self.size)

    def has_batches(self, batches: int) -> bool:
        """Returns whether a pass has at least `batches` batches, all of which are full if `by_example`. Reads no
        further than necessary."""
        elements = batches * self.size if self.by_example else batches
        if self.length_is_known:
            return self.known >= elements
        with eagerly():
            return sum(self.copies.counts(elements)) >= elements

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
        if not self.is_full:
            copy = copy.filter(lambda *batch: self.count_rows(_one(batch)) == self.size)
        return copy.map(lambda *batch: every(_one(batch), rank, ranks))

    def uneven_part(self, rank: int, ranks: int) -> Any:
        """Returns the batches of one rank from a fresh copy, like `part`, with its examples of a last, partial batch.
        Only for data by example, whose batch size is a multiple of `ranks`."""
        return self.copies.make(rank, ranks).batch(self.size // ranks, drop_remainder=self.drops_rest)

    def whole(self) -> Any:
        """Returns the batches of all ranks together from a fresh copy: the batches that plain Keras gets."""
        copy = self.copies.make()
        return copy.batch(self.size, drop_remainder=self.drops_rest) if self.by_example else copy

    def first(self, size: int) -> Any:
        """Returns batches from a fresh copy without shuffles. The first batch has at least `size` examples, if any
        batch has."""
        copy = self.copies.unshuffled()
        if self.by_example:
            return copy.batch(size)
        return copy.filter(lambda *batch: self.count_rows(_one(batch)) >= size).concatenate(copy)

    def in_parts(self, size: int, rank: int, ranks: int) -> Any:
        """Returns batches of `size` examples from a fresh copy: every `ranks`-th one, starting with batch `rank`. The
        last one can be smaller.

        If batches differ in shape, divides each of them, because examples of different batches cannot be joined. Each
        of them can then end with a smaller batch.
        """
        if self.has_varying_shapes:
            return self.whole().flat_map(lambda *batch: self._divided(_one(batch), size)).shard(ranks, rank)
        is_by_example = self.by_example and not self.drops_rest
        elements = self.copies.make() if is_by_example else self.whole().unbatch()
        return elements.batch(size).shard(ranks, rank)

    def _divided(self, batch: Any, size: int) -> Any:
        """Returns a batch as a dataset of batches of at most `size` examples."""
        starts = tf.data.Dataset.range(0, self.count_rows(batch), size)

        def part(start: Any) -> Any:
            return tf.nest.map_structure(lambda each: rows(each, start, start + size), batch)

        return starts.map(part)

    def count_rows(self, element: Any) -> Any:
        """Returns the number of examples in a batch as an int64 scalar."""
        return count_rows(next(iter(self.structure.flatten(element).values())))

    @functools.cached_property
    def _counted(self) -> tuple[int, int]:
        """The number of examples in a pass, and the number of these examples that are in whole batches.

        Reads a pass if TensorFlow cannot determine these numbers.
        """
        if not self._is_of_equal_elements:
            return self._read("examples", self.size, self._sizes, TO_READ_LESS)
        found = self._elements if self.by_example else self._elements * self.size
        return found, found // self.size * self.size

    @functools.cached_property
    def _elements(self) -> int:
        """The number of elements of `copies` in a pass. Reads a pass if TensorFlow does not know it."""
        if self.length_is_known:
            return self.known
        unit = "examples" if self.by_example else "batches"
        stated = "with .apply(tf.data.experimental.assert_cardinality(N))"
        place = "before batch" if self.by_example else "after batch"
        remedy = f"To avoid this, state the number N of {unit} {stated} {place}"
        return self._read(unit, 1, self.copies.counts, remedy, self.copies.counted_output)[0]

    @property
    def _is_of_equal_elements(self) -> bool:
        """Whether each element of `copies` has the same number of examples."""
        return self.by_example or self.is_full

    def _numbers(self, most: int) -> Iterator[int]:
        """Reads at most `most` elements, and yields numbers of elements or, if elements differ in size, the size of
        each."""
        return self.copies.counts(most) if self._is_of_equal_elements else self._sizes(most)

    def _sizes(self, most: int | None = None) -> Iterator[int]:
        """Reads a pass, or at most `most` of its batches, and yields the number of examples in each batch."""
        copy = self.copies.make() if most is None else self.copies.make().take(most)
        for size in copy.map(lambda *batch: self.count_rows(_one(batch))):
            yield int(size)

    def _read(
        self, unit: str, size: int, numbers: Callable[[], Iterator[int]], remedy: str, output: str | None = None
    ) -> tuple[int, int]:
        """Counts `unit` by reading a pass, unless an earlier run has done so. `numbers` reads `output` of the graph, or
        the dataset itself if `output` is None. `remedy` says how a user avoids the count."""
        graph_def, large = self.copies.graph_def, self.copies.large
        read = output_of(graph_def) if output is None else output
        counting = Counting(self.what, unit, size, numbers, lambda: state_of_input(graph_def, read, large), remedy)
        with eagerly():
            return counted(counting)


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
