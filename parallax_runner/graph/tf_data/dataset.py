"""A `tf.data.Dataset` of batches as a data set: each worker reads its part of every batch, and can go on anywhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.dataset import Feature
from parallax_runner.errors import DataError
from parallax_runner.graph.tf_data.repeatable import why_not_repeatable

log = logging.getLogger(__name__)
# They change nothing about the batches that the data set before them makes.
PASSING = ("_PrefetchDataset", "_OptionsDataset")
BATCHING = ("_BatchDataset", "_ParallelBatchDataset")


class TfDataset:
    """Implements `Dataset`, but for reading, which `share` does for one worker.

    The stream is pass after pass over `train`, in each of them all whole batches; a pass that never ends is the only
    one. A batch is that of all workers together: a worker trains on every N-th example of it.
    """

    words_per_example: int | None = None

    def __init__(
        self,
        train: Any,
        validation: Any = None,
        *,
        pass_steps: int | None = None,
        validation_size: int | None = None,
        exact: bool = True,
    ) -> None:
        """`pass_steps` are the whole batches of a pass, and `validation_size` the examples of `validation`; None: they
        are looked up, and where nobody knows them the data is read once and counted.

        Raises DataError where the data has no batches of one size, shapes are not known, or, with `exact`, nobody can
        read it in the same order again.
        """
        batches = Batches(train, "the data")
        self.structure, self.features, self.global_batch = batches.structure, batches.features, batches.size
        reason = why_not_repeatable(train) if exact else None
        if reason is not None:
            raise DataError(
                f"the order of the data cannot be repeated: {reason}. All workers must read it in the same order, and "
                "a run that goes on must find its place: give shuffles a seed, or accept examples that come twice or "
                "not at all with data.resume=approximate"
            )
        self._train = batches
        self.is_endless = batches.is_endless
        self.pass_steps = 1 if self.is_endless else (pass_steps or batches.count() // batches.size)
        if not self.pass_steps:
            raise DataError(f"the data has less than one batch of {batches.size} examples")
        self.train_size = self.pass_steps * batches.size
        self._validation = None if validation is None else Batches(validation, "validation_data")
        self.validation_size = 0
        if self._validation is not None:
            if self._validation.structure != self.structure:
                raise DataError(
                    f"validation_data has the parts {self._validation.structure.names}, and the data "
                    f"{self.structure.names}"
                )
            if self._validation.is_endless:
                raise DataError("validation_data never ends: give it .take(…)")
            self.validation_size = validation_size or self._validation.count()

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """The first batch of the data, or a part of it: only a share can read on. Raises IndexError beyond it."""
        if start + size > self.global_batch:
            raise IndexError(f"examples [{start}, {start + size}): a tf.data.Dataset is read in its order")
        with eagerly():
            (batch,) = self._train.whole.take(1)
            arrays = self._train.arrays(batch)
        return {name: array[start : start + size] for name, array in arrays.items()}

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Raises IndexError: only a share can read it."""
        raise IndexError(f"validation examples [{start}, {start + size}): a tf.data.Dataset is read in its order")

    def share(self, rank: int, ranks: int, replicas: int) -> Share:
        """What one worker of `ranks` reads, with so many replicas each."""
        return Share(self, rank, ranks, replicas)


class Batches:
    """A data set of batches of `size` examples. `elements` are the examples before they were batched, None where
    something else follows the batches."""

    def __init__(self, dataset: Any, what: str) -> None:
        self.whole, self._what = dataset, what
        self.structure = BatchStructure.of(dataset.element_spec)
        specs = self.structure.flatten(dataset.element_spec)
        batched = _last_batching(dataset)
        self.elements = None if batched is None else batched._input_dataset
        self.size = _static_size(specs, what) if batched is None else int(batched._batch_size)
        self.features = {name: _feature(name, spec, what) for name, spec in specs.items()}

    @property
    def is_endless(self) -> bool:
        """Whether a pass over it has no end."""
        return bool(int(self.whole.cardinality()) == tf.data.INFINITE_CARDINALITY)

    def count(self) -> int:
        """How many examples a pass has, in whole batches where only batches can be seen."""
        source, of_one = (self.whole, self.size) if self.elements is None else (self.elements, 1)
        known = int(source.cardinality())
        if known >= 0:
            return known * of_one
        started = time.monotonic()
        with eagerly():
            found = int(source.reduce(np.int64(0), lambda count, *_: count + 1))
        log.info("%s: %d examples, counted in %.1f s", self._what, found * of_one, time.monotonic() - started)
        return found * of_one

    def arrays(self, element: Any) -> dict[str, np.ndarray]:
        """The features of a batch by name."""
        return {name: tensor.numpy() for name, tensor in self.structure.flatten(element).items()}

    def part(self, steps: int | None, rank: int, ranks: int) -> Any:
        """Every `ranks`-th example of the first `steps` whole batches (None: of all), in batches."""
        if self.elements is None:
            whole = self.whole if steps is None else self.whole.take(steps)
            return whole.map(lambda *batch: tf.nest.map_structure(lambda each: each[rank::ranks], _one(batch)))
        elements = self.elements if steps is None else self.elements.take(steps * self.size)
        return elements.shard(ranks, rank).batch(self.size // ranks, drop_remainder=True)

    def in_parts(self, size: int, rank: int, ranks: int) -> Any:
        """Batches of `size` examples, every `ranks`-th of them; what is left over is not used."""
        elements = self.whole.unbatch() if self.elements is None else self.elements
        return elements.batch(size, drop_remainder=True).shard(ranks, rank)


class Share:
    """What one worker reads: its part of each batch."""

    def __init__(self, data: TfDataset, rank: int, ranks: int, replicas: int) -> None:
        self._data, self._rank, self._ranks, self._replicas = data, rank, ranks, replicas
        self._begun, self._at = 0, 0  # passes, and steps of the last one
        self._iterator: Iterator[Any] = iter(())

    def train_batches(self, position: int) -> list[dict[str, np.ndarray]]:
        """A batch for each replica in the step that begins after `position` examples of all workers; positions rise.

        Raises DataError where the data ends earlier than it did before.
        """
        data, step = self._data, position // self._data.global_batch
        number, within = (0, step) if data.is_endless else divmod(step, data.pass_steps)
        with eagerly():
            if self._begun != number + 1:
                self._begin(number, within)
            try:
                for _ in range(self._at, within):
                    next(self._iterator)
                arrays = data._train.arrays(next(self._iterator))
            except StopIteration:
                raise DataError(
                    f"the data ended after {within} of {data.pass_steps} batches of pass {number + 1}: it has changed, "
                    "or ends at another place each time"
                ) from None
        self._at = within + 1
        every = self._replicas
        return [{name: array[first::every] for name, array in arrays.items()} for first in range(every)]

    def validation_batches(self) -> Iterator[dict[str, np.ndarray]]:
        """This worker's share of the validation examples, in whole batches of a replica."""
        data = self._data
        assert data._validation is not None
        size = data.global_batch // (self._ranks * self._replicas)
        with eagerly():
            iterator = iter(data._validation.in_parts(size, self._rank, self._ranks))
        while True:
            with eagerly():
                element = next(iterator, None)
                if element is None:
                    return
                arrays = data._validation.arrays(element)
            yield arrays

    def _begin(self, number: int, within: int) -> None:
        """Begins a pass at a batch. Each iterator gives shuffles their next order, also one that nobody reads."""
        data = self._data
        steps = None if data.is_endless else data.pass_steps
        pipeline = data._train.part(steps, self._rank, self._ranks)
        assert self._begun <= number, "positions rise"
        for _ in range(self._begun, number):
            iter(pipeline)
        self._iterator = iter(pipeline.skip(within).prefetch(2))
        self._begun, self._at = number + 1, within


@contextmanager
def eagerly() -> Iterator[None]:
    """Runs eagerly and on the CPU, whatever graph is the default one."""
    with context.eager_mode(), tf.device("CPU:0"):
        yield


def _last_batching(dataset: Any) -> Any:
    """The batching that is the last step of the data, if it is."""
    while type(dataset).__name__ in PASSING:
        dataset = dataset._input_dataset
    return dataset if type(dataset).__name__ in BATCHING else None


def _static_size(specs: dict[str, Any], what: str) -> int:
    sizes = {spec.shape[0] if spec.shape.rank else None for spec in specs.values() if isinstance(spec, tf.TensorSpec)}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        raise DataError(
            f"{what}: nobody knows how many examples a batch has: let .batch(N) be the last step, or give it "
            "drop_remainder=True"
        )
    return int(size)


def _feature(name: str, spec: Any, what: str) -> Feature:
    if not isinstance(spec, tf.TensorSpec):
        raise DataError(f"{what}: «{name}» is {type(spec).__name__}: only dense tensors can be distributed yet")
    if spec.shape.rank is None or None in spec.shape[1:]:
        raise DataError(
            f"{what}: the shape of «{name}» is {spec.shape}: all dimensions but the first must be known; set them in a "
            "map with tf.ensure_shape"
        )
    return Feature(tuple(spec.shape[1:]), spec.dtype.name)


def _one(batch: tuple[Any, ...]) -> Any:
    """What a map is called with is the element's parts, or the element alone."""
    return batch[0] if len(batch) == 1 else batch
