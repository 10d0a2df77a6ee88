"""Selects the examples for a worker's replicas from the endless stream of data."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parallax_runner.data.dataset import (
    Dataset,
    ReadByRow,
    Share,
    Shared,
    examples_in,
    global_batch_of,
    is_uneven,
    validates_at_least,
)
from parallax_runner.data.shares import SHARE, rows_of, share_of


@dataclass(frozen=True)
class Feed:
    """The batches of worker `rank` among `size` workers. `batch_size` is the number of examples that one replica uses
    in a step or, if the steps are uneven, the size of its validation batches."""

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

    def validates(self, *, whole_only: bool) -> bool:
        """Returns whether any worker has a batch of validation examples. With `whole_only`, the batch must be full."""
        return validates_at_least(self.dataset, self.batch_size if whole_only else 1)

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

    def examples_in(self, batch: dict[str, np.ndarray]) -> int:
        """Returns the number of examples in a batch."""
        return examples_in(batch, self.dataset.features)

    def validation_batches(self, *, whole_only: bool) -> Iterator[dict[str, np.ndarray]]:
        """Yields this worker's share of the validation examples, in batches.

        The last batch of the validation data may be smaller. With `whole_only`, that batch is omitted.
        """
        if self._share is not None:
            yield from self._share.validation_batches(whole_only=whole_only)
            return
        examples = self.dataset.validation_size
        for start in range(self.rank * self.batch_size, examples, self.size * self.batch_size):
            size = min(self.batch_size, examples - start)
            if size == self.batch_size or not whole_only:
                yield self.dataset.validation_batch(start, size)
