"""Selects the examples for a worker's replicas from the endless stream of data."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parallax_runner.data.common_features import validation_features_of
from parallax_runner.data.dataset import (
    Dataset,
    ReadByRow,
    Share,
    Shared,
    examples_in,
    global_batch_of,
    is_uneven,
    validation_rows_of,
)
from parallax_runner.data.shares import SHARE, rows_of, share_of
from parallax_runner.train.fillings import Filler


@dataclass(frozen=True)
class Feed:
    """The batches of worker `rank` among `size` workers. `batch_size` is the number of examples that one replica uses
    in a step, rounded up if the steps are uneven."""

    dataset: Dataset
    batch_size: int
    rank: int
    size: int
    replicas: int = 1

    @property
    def global_batch(self) -> int:
        """The number of examples that all replicas together use in a step with a full batch."""
        whole = global_batch_of(self.dataset) if self.is_uneven else None
        return self.batch_size * self._all_replicas if whole is None else whole

    @functools.cached_property
    def is_uneven(self) -> bool:
        """Whether replicas can get different numbers of examples in some step. Each training batch then contains its
        `SHARE`."""
        return is_uneven(self.dataset, self._all_replicas)

    @property
    def _all_replicas(self) -> int:
        """The number of replicas of all workers."""
        return self.size * self.replicas

    @functools.cached_property
    def _share(self) -> Share | None:
        """This worker's share of the dataset, if the dataset is read sequentially."""
        return self.dataset.share(self.rank, self.size, self.replicas) if isinstance(self.dataset, Shared) else None

    def train_batches(self, position: int) -> list[dict[str, np.ndarray]]:
        """Returns a batch for each replica of this worker.

        The batches are for the step that starts when all ranks together have consumed `position` examples. If the
        steps are uneven, a replica without examples gets another example, and its `SHARE` is 0.
        """
        if self._share is not None:
            return self._share.train_batches(position)
        first = self.rank * self.replicas
        own = range(first, first + self.replicas)
        if not self.is_uneven:
            return [self.dataset.train_batch(position + number * self.batch_size, self.batch_size) for number in own]
        assert isinstance(self.dataset, ReadByRow)
        rows = self.dataset.train_rows(position, self.global_batch)
        return [self._uneven_batch(self.dataset, rows, number) for number in own]

    def _uneven_batch(self, dataset: ReadByRow, rows: np.ndarray, replica: int) -> dict[str, np.ndarray]:
        """Returns the batch of one of all replicas, for a step with these rows."""
        own = rows_of(replica, len(rows), self._all_replicas)
        batch = dataset.batch_of_rows(rows[own.start : own.stop] if own else rows[:1])
        return {**batch, SHARE: np.array(share_of(len(own), len(rows), self._all_replicas))}

    @functools.cached_property
    def any_batch(self) -> dict[str, np.ndarray]:
        """A batch for one replica, with arbitrary values. Making the batch does not advance a dataset that is read
        sequentially."""
        return self.dataset.train_batch(0, self.batch_size)

    def filler(self, size: int | None) -> Filler:
        """Returns what fills validation batches for a model that accepts only `size` examples. None means any size."""
        return Filler(size, validation_features_of(self.dataset), lambda: self.any_batch)

    def examples_in(self, batch: dict[str, np.ndarray]) -> int:
        """Returns the number of examples in a batch."""
        return examples_in(batch, self.dataset.features)

    def validation_batches(self, *, in_parts: bool, step: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yields every N-th validation batch after step `step`, starting with batch `rank`, for N workers.

        The batches are those of the data, whole, because only then is a value of a batch what plain Keras computes
        (docs/design/0091). With `in_parts`, and for data without batches of its own, batches have `batch_size`
        examples. The last one may be smaller, also for a model that accepts no other size (docs/design/0106).
        """
        if self._share is not None:
            yield from self._share.validation_batches(in_parts=in_parts, step=step)
            return
        for rows in self._validation_rows(in_parts=in_parts)[self.rank :: self.size]:
            yield self.dataset.validation_batch(rows.start, len(rows))

    def _validation_rows(self, *, in_parts: bool) -> Sequence[range]:
        """Returns the examples of each validation batch of all workers."""
        rows = None if in_parts else validation_rows_of(self.dataset)
        if rows is not None:
            return rows
        examples, size = self.dataset.validation_size, self.batch_size
        return [range(start, min(start + size, examples)) for start in range(0, examples, size)]

    def validation_number(self, own: int) -> int:
        """Returns the number of a validation batch among the batches of all workers, counted from 1. `own` is its
        number among the batches of this worker, counted from 1."""
        return (own - 1) * self.size + self.rank + 1
