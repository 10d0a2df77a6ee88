"""A dataset that wraps a `tf.data.Dataset` of batches."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.common_features import common_features
from parallax_runner.data.dataset import Feature
from parallax_runner.data.identity import EXAMPLES, FIRST, Contents
from parallax_runner.errors import DataError
from parallax_runner.graph.components import rows
from parallax_runner.graph.tf_data.batches import Batches, eagerly
from parallax_runner.graph.tf_data.repeatable import why_not_repeatable, why_without_order
from parallax_runner.graph.tf_data.worker_share import WorkerShare


@dataclass(frozen=True, eq=False)
class TfDataset:
    """Implements `Dataset`, except for reading: each worker reads through its `share`.

    The stream consists of passes over `train`, or of a single pass if `train` never ends (`is_endless`). A pass
    consists of `pass_steps` batches; `whole_only` omits partial batches. The replicas share each batch: each of N
    replicas trains on every N-th example. Each stream starts as if the dataset had never been read, even if it has been
    read before. Training begins at step `first_step` of pass `first_pass`. `given_steps` and `given_examples` are the
    values of `pass_steps` and `pass_examples` if they are known already. Otherwise, the examples are counted when their
    number is first needed, because that can mean reading all of them. `reads_only_full` says that this job reads only
    full batches, for example because the data is longer. `has_weights` and
    `validation_has_weights` are False if the weights in `train` or `validation` are not the user's but were added,
    because both have the same features.
    """

    train: Batches
    validation: Batches | None
    is_endless: bool
    given_steps: int | None = None
    given_examples: int | None = None
    whole_only: bool = False
    reads_only_full: bool = False
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

        `pass_steps` is the number of batches in a pass, if another process has counted them. If `is_counted` is
        False, data of unknown length, such as a generator, is treated as endless.

        Raises DataError if the data has no batches, if a feature cannot be distributed, or if workers would disagree on
        the examples of `validation`. With `exact`, also raises DataError if the order of the data cannot be repeated.
        """
        batches = Batches.of(train, "the data")
        if exact:
            _check_order(train)
        is_endless = batches.is_endless or not (is_counted or batches.length_is_known)
        held_back = None
        if validation is not None:
            held_back = Batches.of(validation, "validation_data")
            _check_validation(held_back, validation, batches, exact=exact)
        reads_only_full = batches.is_full or (batches.by_example and batches.is_endless)
        made = cls(
            batches,
            held_back,
            is_endless,
            pass_steps or None,
            reads_only_full=reads_only_full,
            has_weights=has_weights,
            validation_has_weights=validation_has_weights,
        )
        if not made.is_counted_by_reading:
            made.check_size()
        return made

    def check_size(self) -> None:
        """Raises DataError if a pass has no batch. Can read all examples."""
        if self.is_endless or self._steps:
            return
        if self.whole_only or self.train.drops_rest:
            raise DataError(f"the data has less than one batch of {self.train.size} examples: use a smaller batch")
        raise DataError("the data has no examples")

    @property
    def pass_steps(self) -> int:
        """The number of batches in a pass, 1 for endless data. Can read all examples. Raises DataError if a pass has no
        batch."""
        self.check_size()
        return 1 if self.is_endless else self._steps

    @functools.cached_property
    def _steps(self) -> int:
        if self.given_steps:
            return self.given_steps
        return self.train.count_whole()[0] if self.whole_only else self.train.count_batches()

    @property
    def pass_examples(self) -> int | None:
        """The number of examples in a pass, or None if no worker needs it. Can read all examples."""
        is_needed = self.has_partial_batches and self.train.by_example and not self.is_endless
        if not is_needed:
            return None
        return self.given_examples or self.train.count()

    def step_examples(self, within: int) -> int | None:
        """Returns the number of examples in batch `within` of a pass, or None if only the batch itself tells it. Can
        read all examples."""
        size = self.train.size
        if self.reads_only_full or self.whole_only:
            return size
        examples = self.pass_examples
        return None if examples is None else max(0, min(size, examples - within * size))

    @property
    def has_partial_batches(self) -> bool:
        """Whether a batch can be partial. Data whose length is unknown can have a partial batch."""
        return not (self.train.is_full or self.whole_only)

    def with_whole_batches(self) -> TfDataset:
        """Returns the same dataset without partial batches. Raises DataError if no batch remains, or if no size of a
        whole batch is known."""
        if not (self.train.has_common_size or self.train.is_full):
            raise DataError(
                f"this run needs batches of one size, but the sizes of the batches of {self.train.what} are unknown: "
                "make .batch(N, drop_remainder=True) the last transformation"
            )
        made = replace(self, whole_only=True)
        if not made.is_counted_by_reading:
            made.check_size()
        return made

    @property
    def validation_size(self) -> int:
        """The number of examples in the batches of `validation`. Can read all of them."""
        return 0 if self.validation is None else self.validation.count_in_batches()

    def validates_at_least(self, examples: int) -> bool:
        """Returns whether there are at least `examples` validation examples. Reads no further than necessary."""
        return self.validation is not None and self.validation.has_in_batches(examples)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user must know about the examples. Can read all of them."""
        if self.is_endless or self.given_steps is not None or not (self.whole_only or self.train.drops_rest):
            return ()
        left = self.train.count_whole()[1]
        if not left:
            return ()
        return (f"{left} examples are omitted from each pass over the data, because they do not fill a batch",)

    @property
    def is_counted_by_reading(self) -> bool:
        """Whether the length of a pass can only be found by reading all examples."""
        if self.is_endless or self.given_steps is not None:
            return False
        return self.train.is_counted_by_reading if self.whole_only else not self.train.length_is_known

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
    def validation_features(self) -> Mapping[str, Feature]:
        """The features of an example in a validation batch."""
        return self.features if self.validation is None else common_features(self.features, self.validation.features)

    @property
    def global_batch(self) -> int:
        """The number of examples in a full batch of all workers together."""
        return self.train.size

    @property
    def train_size(self) -> int:
        """The number of examples in a pass, as if each batch were full. Can read all examples."""
        return self.pass_steps * self.train.size

    def first_steps(self, steps: int) -> TfDataset:
        """Returns the same dataset for a job that reads at most `steps` batches.

        Such a job need not know where a long pass ends, so this dataset is endless if a pass has as many examples.
        Reads no further than these batches."""
        if not self.is_counted_by_reading:
            return self
        has = self.train.has_batches
        is_long = self.train.has(steps * self.train.size) if self.whole_only else has(steps)
        return replace(self, is_endless=True, reads_only_full=self.train.by_example) if is_long else self

    def with_pass_steps(self, steps: int, examples: int | None = None) -> TfDataset:
        """Returns the same dataset, with the numbers of steps and examples in a pass that another process has
        counted."""
        return replace(self, given_steps=steps, given_examples=examples)

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
        take minutes. Returns fewer than `size` examples only if the first batch has fewer. Raises IndexError beyond the
        first batch: only a share can read further."""
        if start + size > self.global_batch:
            raise IndexError(f"examples [{start}, {start + size}): a tf.data.Dataset can only be read in order")
        with eagerly():
            (batch,) = self.train.first(start + size).take(1)
            return self.train.arrays(tf.nest.map_structure(lambda each: rows(each, start, start + size), batch))

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Raises IndexError: only a share can read validation examples."""
        raise IndexError(f"validation examples [{start}, {start + size}): a tf.data.Dataset can only be read in order")

    def sizes(self) -> dict[str, str]:
        """Returns the number of examples or batches in a pass. If batches are counted, the name contains their size,
        because another batch size yields another number."""
        if self.is_endless:
            return {}
        if self.train.by_example:
            return {EXAMPLES: str(self.train.count())}
        if self.train.is_full:
            return {f"{EXAMPLES} in batches of {self.global_batch}": str(self.train.count())}
        return {f"batches of {self.global_batch} {EXAMPLES}": str(self.train.count_batches())}

    def contents(self) -> Contents:
        """Returns digests of the first examples of the pipelines without their shuffles, and the shuffles' seeds."""
        held_back = {} if self.validation is None else {FIRST: self.validation.digest_of_first()}
        return Contents({FIRST: self.train.digest_of_first()}, self.train.seeds, held_back)

    def share(self, rank: int, ranks: int, replicas: int) -> WorkerShare:
        """Returns the part of the data that one of `ranks` workers reads. Each worker has `replicas` replicas.

        Raises DataError if all batches must be whole, and a batch cannot be divided evenly among all replicas.
        """
        parts = ranks * replicas
        if self.whole_only and self.global_batch % parts:
            below = self.global_batch // parts * parts
            nearest = f"{below} or {below + parts}" if below else str(parts)
            raise DataError(
                f"a batch of {self.global_batch} examples cannot be divided into {parts} equal parts, one for each "
                f"replica: choose a batch of {nearest}, or another number of workers"
            )
        return WorkerShare(self, rank, ranks, replicas)


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


def _check_validation(batches: Batches, validation: Any, train: Batches, *, exact: bool) -> None:
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
    if batches.structure != train.structure:
        raise DataError(
            f"validation_data has the parts {batches.structure.names}, but the training data has "
            f"{train.structure.names}: give both the same parts"
        )
    common_features(train.features, batches.features)
    if batches.is_endless:
        raise DataError("validation_data never ends: limit it with .take(…)")
