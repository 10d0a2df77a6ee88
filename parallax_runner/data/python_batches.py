"""A dataset whose batches Python code makes, one by one: a `keras.utils.PyDataset` or a generator."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.dataset import Feature
from parallax_runner.data.digest import digest_of
from parallax_runner.data.identity import EXAMPLES, FIRST, Contents
from parallax_runner.data.shares import SHARE, share_of
from parallax_runner.data.stream import epoch_order
from parallax_runner.data.strings import dtype_name
from parallax_runner.errors import DataError

Batch = dict[str, np.ndarray]


class Reader(Protocol):
    """Makes the batches of a pass. If it `is_read_once`, the batches after the first two are made once, in order."""

    is_read_once: bool

    @property
    def count(self) -> int | None:
        """The number of batches in a pass, or None if a pass never ends."""
        ...

    def read(self, index: int) -> Batch:
        """Makes batch `index`. All of its arrays have the same number of rows."""
        ...

    def go_to_epoch(self, number: int, earlier: Sequence[int]) -> None:
        """Ends the epochs before epoch `number`, counted from 0. `earlier` are the numbers of epochs of earlier calls
        of `fit`, which come before epoch 0."""
        ...


class PythonBatches:
    """Implements `Dataset` and `Shared`. A pass has all batches of `train`, each of which can have another size. Each
    worker makes each batch, and each of N replicas trains on every N-th example. With `shuffle`, each pass has the
    batches in another order, which depends on `seed`. An epoch has `epoch_steps` batches. `epochs_before` are the
    numbers of epochs of earlier calls of `fit` with the same data."""

    words_per_example: int | None = None
    whole_only = False
    has_partial_batches = True  # nobody knows before they are made

    def __init__(
        self,
        train: Reader,
        validation: Reader | None,
        structure: BatchStructure,
        validation_structure: BatchStructure,
        *,
        kind: str,
        shuffle: bool,
        seed: int = 0,
        epoch_steps: int | None = None,
    ) -> None:
        """Makes two batches of `train` and two of `validation` to determine the features. Raises DataError if there is
        no batch. `structure` and `validation_structure` build the elements of training and validation from the
        features. `kind` names the kind of data. `epoch_steps` is None if an epoch is a pass."""
        if train.count == 0:
            raise DataError("the data has no batches")
        self._train, self._validation = train, validation
        self.structure, self.validation_structure = structure, validation_structure
        self.kind, self.shuffle, self.seed = kind, shuffle, seed
        self.first_pass = self.first_step = 0
        self._first = train.read(0)
        others = [*_first_two(train)[1:], *([] if validation is None else _first_two(validation))]
        self.features = {
            name: _feature(array, [batch[name] for batch in others]) for name, array in self._first.items()
        }
        self.global_batch = rows_in(self._first)
        self.is_endless = train.count is None
        self.epoch_steps = epoch_steps or self.pass_steps
        self.epochs_before: Sequence[int] = ()
        self.validations_before: Callable[[int], int] = lambda step: 0

    def with_seed(self, seed: int) -> PythonBatches:
        """Returns a dataset with the same batches, shuffled with a different seed."""
        found = copy.copy(self)
        found.seed = seed
        return found

    def after(
        self, steps: int, epochs: Sequence[int] = (), validations_before: Callable[[int], int] = lambda step: 0
    ) -> PythonBatches:
        """Returns a dataset that continues with the next pass after the `steps` steps of earlier calls of `fit`. Each
        of these calls had one of the numbers `epochs` of epochs. Endless data starts again from the beginning, as in
        Keras, unless it is read once. `validations_before` returns the number of validations before the one after a
        step."""
        found = copy.copy(self)
        found.epochs_before, found.validations_before = tuple(epochs), validations_before
        if self._train.is_read_once:
            found.first_step = self.first_step + steps
        elif not self.is_endless:
            found.first_pass = self.first_pass - (-steps // self.pass_steps)
        return found

    @property
    def why_it_stays(self) -> str:
        """Says why the data cannot be sent to the workers."""
        return f"the data is a {self.kind}, which calls Python code"

    def with_whole_batches(self) -> PythonBatches:
        """Raises DataError, because the sizes of the batches are unknown."""
        raise DataError(
            f"this run needs batches of one size, but the sizes of the batches of a {self.kind} are unknown: pass "
            "arrays or a tf.data.Dataset"
        )

    @property
    def pass_steps(self) -> int:
        """The number of batches in a pass, 1 for endless data."""
        return 1 if self._train.count is None else self._train.count

    @property
    def train_size(self) -> int:
        """The number of examples in a pass, as if each batch had the size of the first one."""
        return self.pass_steps * self.global_batch

    @functools.cached_property
    def validation_size(self) -> int:
        """The number of validation examples. Makes all batches."""
        return sum(map(rows_in, self.validation_batches()))

    def validates_at_least(self, examples: int) -> bool:
        """Returns whether there are at least `examples` validation examples. Makes no more batches than necessary."""
        found = 0
        for batch in self.validation_batches():
            found += rows_in(batch)
            if found >= examples:
                return True
        return False

    def validation_batches(self, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """Makes every `ranks`-th validation batch, starting with batch `rank`."""
        if self._validation is None:
            return
        assert self._validation.count is not None
        for index in range(rank, self._validation.count, ranks):
            yield self._validation.read(index)

    def go_to_validation(self, step: int) -> None:
        """Ends the validations before the one after step `step`. In Keras, each validation has one epoch."""
        assert self._validation is not None
        self._validation.go_to_epoch(0, [1] * self.validations_before(step))

    def train_batch(self, start: int, size: int) -> Batch:
        """Returns examples of the first batch. Raises IndexError beyond it: only a share can read further."""
        if start + size > self.global_batch:
            raise IndexError(f"examples [{start}, {start + size}): the batches can only be read in order")
        return {name: array[start : start + size] for name, array in self._first.items()}

    def validation_batch(self, start: int, size: int) -> Batch:
        """Raises IndexError: only a share can read validation examples."""
        raise IndexError(f"validation examples [{start}, {start + size}): the batches can only be read in order")

    def step_batch(self, step: int) -> Batch:
        """Makes the batch of all replicas for a step."""
        if self._train.count is None:
            number, within = 0, self.first_step + step
        else:
            number, within = divmod(step, self._train.count)
        number += self.first_pass
        self._train.go_to_epoch(step // self.epoch_steps, self.epochs_before)
        return self._train.read(int(self._order(number)[within]) if self.shuffle and not self.is_endless else within)

    def _order(self, number: int) -> np.ndarray:
        return epoch_order(size=self.pass_steps, seed=self.seed, epoch=number)

    def sizes(self) -> dict[str, str]:
        """Returns the number of batches."""
        return {} if self.is_endless else {f"batches of {self.global_batch} {EXAMPLES}": str(self.pass_steps)}

    def contents(self) -> Contents:
        """Returns a digest of the first batch."""
        order = f"seed {self.seed}" if self.shuffle else "as given"
        return Contents(training={FIRST: digest_of(self._first)}, order=order)

    def share(self, rank: int, ranks: int, replicas: int) -> PythonShare:
        """Returns the part of the data that one of `ranks` workers reads. Each worker has `replicas` replicas."""
        return PythonShare(self, rank, ranks, replicas)


class PythonShare:
    """One worker's part of each batch of `PythonBatches`. Implements `Share`."""

    def __init__(self, data: PythonBatches, rank: int, ranks: int, replicas: int) -> None:
        self._data, self._rank, self._ranks, self._replicas = data, rank, ranks, replicas

    def train_batches(self, position: int) -> list[Batch]:
        """Returns one batch per replica, with its `SHARE`. A replica without examples gets the first example of the
        batch."""
        whole = self._data.step_batch(position // self._data.global_batch)
        numbers = range(self._rank, self._ranks * self._replicas, self._ranks)
        return [self._part(whole, number) for number in numbers]

    def validation_batches(self, *, in_parts: bool, step: int = 0) -> Iterator[Batch]:
        """Yields every N-th validation batch. `in_parts` must be False, because models for batches of unknown sizes
        accept any size."""
        assert not in_parts
        self._data.go_to_validation(step)
        return self._data.validation_batches(self._rank, self._ranks)

    def _part(self, whole: Batch, number: int) -> Batch:
        all_replicas, examples = self._ranks * self._replicas, rows_in(whole)
        own = len(range(number, examples, all_replicas))
        rows = slice(number, None, all_replicas) if own else slice(0, 1)
        part = {name: array[rows] for name, array in whole.items()}
        return {**part, SHARE: np.array(share_of(own, examples, all_replicas))}


def rows_in(batch: Mapping[str, np.ndarray]) -> int:
    """Returns the number of examples in a batch of dense arrays."""
    return len(next(iter(batch.values())))


def _first_two(reader: Reader) -> list[Batch]:
    """Makes the first two batches, or the only one."""
    count = 2 if reader.count is None else min(2, reader.count)
    return [reader.read(index) for index in range(count)]


def _feature(first: np.ndarray, others: list[np.ndarray]) -> Feature:
    """Returns the feature that the first batch has in common with other batches. Raises DataError if their arrays have
    different numbers of dimensions."""
    for other in others:
        if first.ndim != other.ndim:
            raise DataError(f"an array of the first batch has {first.ndim} dimensions, but {other.ndim} in another one")
    sizes = zip(*(array.shape[1:] for array in (first, *others)), strict=True)
    return Feature(tuple(size[0] if len(set(size)) == 1 else None for size in sizes), dtype_name(first))
