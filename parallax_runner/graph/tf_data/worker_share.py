"""One worker's part of the batches of a `tf.data.Dataset`. A worker can start at any position."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from parallax_runner.data.dataset import is_uneven
from parallax_runner.data.shares import SHARE, share_of
from parallax_runner.errors import DataError
from parallax_runner.graph.components import rows
from parallax_runner.graph.tf_data.batches import eagerly, every

if TYPE_CHECKING:
    from parallax_runner.graph.tf_data.batches import Batches
    from parallax_runner.graph.tf_data.tf_dataset import TfDataset

Arrays = dict[str, np.ndarray]


class WorkerShare:
    """Implements `Share`. One thread can train on the share while another thread validates.

    All replicas together read a batch: replica number i of N gets every N-th example, starting with example i. The
    numbers of a worker's replicas are its rank plus multiples of the number of workers. If the steps are uneven, a
    worker reads its own examples if their number is known beforehand, and all examples of each batch otherwise.
    """

    def __init__(self, data: TfDataset, rank: int, ranks: int, replicas: int) -> None:
        self._data, self._rank, self._ranks, self._replicas = data, rank, ranks, replicas
        self._is_uneven = is_uneven(data, ranks * replicas)
        self._reads_whole = self._is_uneven and not self._can_read_own()
        self._copy: Any = None
        self._validation: Any = None
        self._pass, self._at = 0, 0  # the iterator's position: the pass, and the steps read in that pass
        self._iterator: Iterator[Any] | None = None

    def train_batches(self, position: int) -> list[Arrays]:
        """Returns one batch per replica for the step that begins after the workers have read `position` examples in
        total, as if each batch were full. A replica without examples gets another example, and its `SHARE` is 0.

        Reading continues from the last position. If `position` is earlier, reading restarts from the beginning.

        Raises DataError if the data ends before this step's batch.
        """
        data, step = self._data, position // self._data.global_batch
        number, within = (0, data.first_step + step) if data.is_endless else divmod(step, data.pass_steps)
        with eagerly():
            self._go_to(data.first_pass + number, within)
            if self._reads_whole:
                return self._of_whole(self._next(within), within)
            if self._is_uneven:
                return self._of_own(within)
            return self._evenly(self._next(within))

    def validation_batches(self, *, in_parts: bool, step: int = 0) -> Iterator[Arrays]:
        """Yields every N-th validation batch, whole, for N workers. With `in_parts`, yields batches of the size of a
        replica's training batch, or smaller."""
        validation = self._data.validation
        assert validation is not None
        with eagerly():
            if self._validation is None:  # reused, with its caches, in the next validation
                self._validation = self._of_validation(validation, in_parts=in_parts)
            iterator = iter(self._validation)
        while True:
            with eagerly():
                element = next(iterator, None)
                if element is None:
                    return
                arrays = validation.arrays(element)
            yield arrays

    def _of_validation(self, validation: Batches, *, in_parts: bool) -> Any:
        """Returns a fresh copy of this worker's validation batches."""
        if in_parts:
            return validation.in_parts(self._data.global_batch // self._all_replicas, self._rank, self._ranks)
        return validation.whole().shard(self._ranks, self._rank)

    @property
    def _all_replicas(self) -> int:
        return self._ranks * self._replicas

    @property
    def _numbers(self) -> list[int]:
        """The numbers of this worker's replicas among all replicas."""
        return [self._rank + self._ranks * replica for replica in range(self._replicas)]

    def _can_read_own(self) -> bool:
        """Returns whether the worker knows the number of its examples in each step without reading the others."""
        if not self._data.train.by_example or self._data.global_batch % self._ranks:
            return False
        return self._data.reads_only_full or not self._data.is_endless

    def _evenly(self, own: Any) -> list[Arrays]:
        """Divides the worker's examples of a step equally."""
        train = self._data.train
        if self._replicas == 1:
            return [train.arrays(own)]
        return [train.arrays(every(own, replica, self._replicas)) for replica in range(self._replicas)]

    def _of_whole(self, whole: Any, within: int) -> list[Arrays]:
        """Returns the replicas' batches out of the examples `whole` of a step."""
        step_examples = int(self._data.train.count_rows(whole))
        if not step_examples:
            raise DataError(f"batch {within + 1} of the data has no examples")
        return [
            self._with_share(every(whole, number, self._all_replicas), whole, number, step_examples)
            for number in self._numbers
        ]

    def _of_own(self, within: int) -> list[Arrays]:
        """Reads the worker's examples of a step, and returns the replicas' batches."""
        step_examples = self._data.step_examples(within)
        assert step_examples is not None
        expected = _count(self._rank, step_examples, self._ranks)
        if not step_examples:
            raise self._ended(within)
        if not expected:
            return [self._without_examples(self._filler) for _ in self._numbers]
        own = self._next(within)
        if int(self._data.train.count_rows(own)) != expected:
            raise self._ended(within)
        return [
            self._with_share(every(own, replica, self._replicas), own, number, step_examples)
            for replica, number in enumerate(self._numbers)
        ]

    def _with_share(self, part: Any, source: Any, number: int, step_examples: int) -> Arrays:
        """Returns the batch `part` of replica `number` with its share of the step. If the batch is empty, takes the
        first example of `source`."""
        examples = _count(number, step_examples, self._all_replicas)
        train = self._data.train
        if not examples:
            return self._without_examples(train.arrays(_first_of(source)))
        return {**train.arrays(part), SHARE: np.array(share_of(examples, step_examples, self._all_replicas))}

    @staticmethod
    def _without_examples(filler: Arrays) -> Arrays:
        return {**filler, SHARE: np.array(0.0)}

    @functools.cached_property
    def _filler(self) -> Arrays:
        """An example of the data, for a step in which this worker has none."""
        return self._data.train_batch(0, 1)

    def _go_to(self, number: int, within: int) -> None:
        """Moves to batch `within` of pass `number`."""
        if self._copy is None or (number, within) < (self._pass, self._at):
            self._copy = self._opened()
            self._pass, self._at, self._iterator = 0, 0, None
        while self._pass < number:
            self._end_pass()
        if self._iterator is None:
            self._iterator, self._at = iter(self._copy.skip(within).prefetch(2)), within
        while self._at < within:
            self._next(within)

    def _opened(self) -> Any:
        """Returns a fresh copy of the batches that this worker reads."""
        train = self._data.train
        if self._reads_whole:
            return train.whole()
        if self._is_uneven:
            return train.uneven_part(self._rank, self._ranks)
        return train.part(self._rank, self._ranks)

    def _end_pass(self) -> None:
        """Puts shuffles and caches into the state that they have after a complete pass. The next pass is then the same,
        no matter where the run started."""
        copies = self._data.train.copies
        if self._iterator is None and not copies.keeps_nothing:
            self._iterator = iter(self._copy)
        if self._iterator is not None and not (copies.keeps_nothing or copies.opening_takes_seeds):
            for _ in self._iterator:
                pass
        self._pass, self._at, self._iterator = self._pass + 1, 0, None

    def _next(self, within: int) -> Any:
        assert self._iterator is not None
        try:
            element = next(self._iterator)
        except StopIteration:
            raise self._ended(within) from None
        self._at += 1
        return element

    def _ended(self, within: int) -> DataError:
        """Returns the error for data that ends before batch `within` of a pass."""
        data = self._data
        if data.is_endless:
            return DataError(
                f"the data ended before batch {within + 1}: its length is unknown, and it has fewer batches "
                "than all epochs need. Add .repeat(), or omit steps_per_epoch so that the batches are counted"
            )
        return DataError(
            f"the data ended before batch {within + 1} of {data.pass_steps} in pass {self._pass + 1}: it has "
            "changed, or its length varies"
        )


def _count(number: int, examples: int, numbers: int) -> int:
    """Returns how many of `examples` examples are every `numbers`-th one, starting with example `number`."""
    return len(range(number, examples, numbers))


def _first_of(batch: Any) -> Any:
    return tf.nest.map_structure(lambda each: rows(each, 0, 1), batch)
