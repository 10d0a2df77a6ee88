"""A dataset that wraps a `tf.data.Dataset` of batches. Each worker reads its part of every batch, and can start at any
position."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.dataset import Feature
from parallax_runner.data.identity import EXAMPLES, FIRST, Contents
from parallax_runner.errors import DataError
from parallax_runner.graph.components import rows
from parallax_runner.graph.tf_data.batches import Batches, eagerly, every
from parallax_runner.graph.tf_data.repeatable import why_not_repeatable, why_without_order


@dataclass(frozen=True, eq=False)
class TfDataset:
    """Implements `Dataset`, except for reading: each worker reads through its `share`.

    The stream consists of passes over `train`, or of a single pass if `train` never ends (`is_endless`). A pass
    consists of `pass_steps` whole batches. The workers share each batch: each of N workers trains on every N-th
    example. Each stream starts as if the dataset had never been read, even if it has been read before. Training begins
    at step `first_step` of pass `first_pass`. `given_steps` is the value of `pass_steps` if it is known already.
    Otherwise, the examples are counted when their number is first needed, because that can mean reading all of them.
    `has_weights` and `validation_has_weights` are False if the weights in `train` or `validation` are not the user's
    but were added, because both have the same features.
    """

    train: Batches
    validation: Batches | None
    is_endless: bool
    given_steps: int | None = None
    first_pass: int = 0
    first_step: int = 0
    words_per_example: int | None = None
    has_weights: bool = True
    validation_has_weights: bool = True

    @classmethod
    def of(
        cls,
        train: Any,
        validation: Any = None,
        *,
        pass_steps: int | None = None,
        exact: bool = True,
        is_counted: bool = True,
        has_weights: bool = True,
        validation_has_weights: bool = True,
    ) -> TfDataset:
        """Returns the dataset of one or two `tf.data.Dataset`s.

        `pass_steps` is the number of whole batches in a pass, if another process has counted them. If `is_counted` is
        False, data of unknown length, such as a generator, is treated as endless.

        Raises DataError if the batches have no common size, if shapes are unknown, or if workers would disagree on the
        examples of `validation`. With `exact`, also raises DataError if the order of the data cannot be repeated.
        """
        batches = Batches.of(train, "the data")
        if exact:
            _check_order(train)
        is_endless = batches.is_endless or not (is_counted or batches.length_is_known)
        held_back = None
        if validation is not None:
            held_back = Batches.of(validation, "validation_data")
            _check_validation(held_back, validation, batches.structure, exact=exact)
        made = cls(
            batches,
            held_back,
            is_endless,
            pass_steps or None,
            has_weights=has_weights,
            validation_has_weights=validation_has_weights,
        )
        if not made.is_counted_by_reading:
            made.check_size()
        return made

    def check_size(self) -> None:
        """Raises DataError if a pass has less than one batch. Can read all examples."""
        if not self.is_endless and not self._steps:
            raise DataError(f"the data has less than one batch of {self.train.size} examples: use a smaller batch")

    @property
    def pass_steps(self) -> int:
        """The number of whole batches in a pass, 1 for endless data. Can read all examples. Raises DataError if a pass
        has less than one batch."""
        self.check_size()
        return 1 if self.is_endless else self._steps

    @functools.cached_property
    def _steps(self) -> int:
        return self.given_steps or self.train.count_steps()[0]

    @property
    def validation_size(self) -> int:
        """The number of examples in `validation`. Can read all of them."""
        return 0 if self.validation is None else self.validation.count()

    def validates_at_least(self, examples: int) -> bool:
        """Returns whether there are at least `examples` validation examples. Reads no further than necessary."""
        return self.validation is not None and self.validation.has(examples)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user must know about the examples. Can read all of them."""
        if self.is_endless or self.given_steps is not None:
            return ()
        left = self.train.count_steps()[1]
        if not left:
            return ()
        return (f"{left} examples are omitted from each pass over the data, because they do not fill a batch",)

    @property
    def is_counted_by_reading(self) -> bool:
        """Whether the length of a pass can only be found by reading all examples."""
        return not self.is_endless and self.given_steps is None and self.train.is_counted_by_reading

    @property
    def structure(self) -> BatchStructure:
        """The positions of the features in a training element."""
        return self.train.structure if self.has_weights else self.train.structure.without_weights()

    @property
    def validation_structure(self) -> BatchStructure:
        """The positions of the features in a validation element."""
        return self.train.structure if self.validation_has_weights else self.train.structure.without_weights()

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features of an example."""
        return self.train.features

    @property
    def global_batch(self) -> int:
        """The number of examples in a batch of all workers together."""
        return self.train.size

    @property
    def train_size(self) -> int:
        """The number of examples in the whole batches of a pass. Can read all examples."""
        return self.pass_steps * self.train.size

    def first_steps(self, steps: int) -> TfDataset:
        """Returns the same dataset for a job that reads at most `steps` batches.

        Such a job need not know where a long pass ends, so this dataset is endless if a pass has as many examples.
        Reads no further than these batches."""
        if not self.is_counted_by_reading:
            return self
        is_long = self.train.has(steps * self.train.size)
        return replace(self, is_endless=True) if is_long else self

    def with_pass_steps(self, steps: int) -> TfDataset:
        """Returns the same dataset, with the number of steps in a pass that another process has counted."""
        return replace(self, given_steps=steps)

    def after(self, steps: int) -> TfDataset:
        """Returns a dataset that continues after `steps` steps.

        Finite data continues with the next pass, even if the steps end in the middle of a pass. Endless data starts
        again from the beginning, as in Keras, unless its order is random: then it continues with the next batch.
        """
        if not steps:  # a first call of fit, which might not need the length of a pass
            return self
        if not self.is_endless:
            return replace(self, first_pass=self.first_pass - (-steps // self.pass_steps))
        if not self.train.draws_order:
            return self
        return replace(self, first_step=self.first_step + steps)

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns the first examples of the data, without shuffling them, because filling the buffer of a shuffle can
        take minutes. Raises IndexError beyond the first batch: only a share can read further."""
        if start + size > self.global_batch:
            raise IndexError(f"examples [{start}, {start + size}): a tf.data.Dataset can only be read in order")
        with eagerly():
            (batch,) = self.train.first(start + size).take(1)
            return self.train.arrays(tf.nest.map_structure(lambda each: rows(each, start, start + size), batch))

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Raises IndexError: only a share can read validation examples."""
        raise IndexError(f"validation examples [{start}, {start + size}): a tf.data.Dataset can only be read in order")

    def sizes(self) -> dict[str, str]:
        """Returns the number of examples in a pass. If batches are counted, the name contains their size, because
        another batch size can omit other examples."""
        if self.is_endless:
            return {}
        name = EXAMPLES if self.train.by_example else f"{EXAMPLES} in batches of {self.global_batch}"
        return {name: str(self.train.count())}

    def contents(self) -> Contents:
        """Returns digests of the first examples of the pipelines without their shuffles, and the shuffles' seeds."""
        held_back = {} if self.validation is None else {FIRST: self.validation.digest_of_first()}
        return Contents({FIRST: self.train.digest_of_first()}, self.train.seeds, held_back)

    def share(self, rank: int, ranks: int, replicas: int) -> Share:
        """Returns the part of the data that one of `ranks` workers reads. Each worker has `replicas` replicas.

        Raises DataError if a batch cannot be divided evenly among all replicas of all workers.
        """
        parts = ranks * replicas
        if self.global_batch % parts:
            below = self.global_batch // parts * parts
            nearest = f"{below} or {below + parts}" if below else str(parts)
            raise DataError(
                f"a batch of {self.global_batch} examples cannot be divided into {parts} equal parts, one for each "
                f"replica: choose a batch of {nearest}, or another number of workers"
            )
        return Share(self, rank, ranks, replicas)


class Share:
    """One worker's part of each batch. One thread can train on the share while another thread validates."""

    def __init__(self, data: TfDataset, rank: int, ranks: int, replicas: int) -> None:
        self._data, self._rank, self._ranks, self._replicas = data, rank, ranks, replicas
        self._copy: Any = None
        self._validation: Any = None
        self._pass, self._at = 0, 0  # the iterator's position: the pass, and the steps read in that pass
        self._iterator: Iterator[Any] | None = None

    def train_batches(self, position: int) -> list[dict[str, np.ndarray]]:
        """Returns one batch per replica for the step that begins after the workers have read `position` examples in
        total.

        Reading continues from the last position. If `position` is earlier, reading restarts from the beginning.

        Raises DataError if the data ends before this step's batch.
        """
        data, step = self._data, position // self._data.global_batch
        number, within = (0, data.first_step + step) if data.is_endless else divmod(step, data.pass_steps)
        with eagerly():
            self._go_to(data.first_pass + number, within)
            batch, replicas = self._next(within), self._replicas
            if replicas == 1:
                return [data.train.arrays(batch)]
            return [data.train.arrays(every(batch, first, replicas)) for first in range(replicas)]

    def validation_batches(self, *, whole_only: bool) -> Iterator[dict[str, np.ndarray]]:
        """Yields this worker's share of the validation examples, in batches for one replica."""
        data = self._data
        assert data.validation is not None
        size = data.global_batch // (self._ranks * self._replicas)
        with eagerly():
            if self._validation is None:  # reused, with its caches, in the next validation
                copy = data.validation.copies.make()
                self._validation = data.validation.in_parts(copy, size, self._rank, self._ranks, whole_only=whole_only)
            iterator = iter(self._validation)
        while True:
            with eagerly():
                element = next(iterator, None)
                if element is None:
                    return
                arrays = data.validation.arrays(element)
            yield arrays

    def _go_to(self, number: int, within: int) -> None:
        """Moves to batch `within` of pass `number`."""
        if self._copy is None or (number, within) < (self._pass, self._at):
            self._copy = self._data.train.part(self._rank, self._ranks)
            self._pass, self._at, self._iterator = 0, 0, None
        while self._pass < number:
            self._end_pass()
        if self._iterator is None:
            self._iterator, self._at = iter(self._copy.skip(within).prefetch(2)), within
        while self._at < within:
            self._next(within)

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
            data = self._data
            if data.is_endless:
                raise DataError(
                    f"the data ended before batch {within + 1}: its length is unknown, and it has fewer batches "
                    "than all epochs need. Add .repeat(), or omit steps_per_epoch so that the batches are counted"
                ) from None
            raise DataError(
                f"the data ended before batch {within + 1} of {data.pass_steps} in pass {self._pass + 1}: it has "
                "changed, or its length varies"
            ) from None
        self._at += 1
        return element


def _check_order(train: Any) -> None:
    """Raises DataError if the order of the training data cannot be repeated."""
    with eagerly():
        reason = why_not_repeatable(train)
    if reason is not None:
        raise DataError(
            f"the order of the data cannot be repeated: {reason}. All workers must read the data in the same "
            "order, and a resumed run must continue at the next example. Give each shuffle a seed, or set "
            "++data.resume=approximate, which may repeat or skip examples"
        )


def _check_validation(batches: Batches, validation: Any, structure: BatchStructure, *, exact: bool) -> None:
    """Raises DataError if workers would read the validation data in different orders, if it has other parts than the
    training data, or if it never ends. Without `exact`, assumes that generators and Python functions repeat their
    order."""
    with eagerly():
        reason = why_not_repeatable(validation) if exact else why_without_order(validation)
    if reason is not None:
        remedy = "" if not exact else ". For a generator or a Python function, set ++data.resume=approximate"
        raise DataError(
            f"validation_data: its order cannot be repeated: {reason}. Each worker validates every N-th batch, so all "
            f"workers must read it in the same order: remove the shuffle, or give it a seed{remedy}"
        )
    if batches.structure != structure:
        raise DataError(
            f"validation_data has the parts {batches.structure.names}, but the training data has "
            f"{structure.names}: give both the same parts"
        )
    if batches.is_endless:
        raise DataError("validation_data never ends: limit it with .take(…)")
