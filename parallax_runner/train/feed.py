"""Which examples a worker's replicas see: a cut of the data's endless stream."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parallax_runner.data.dataset import Dataset, Share, Shared, examples_in


@dataclass(frozen=True)
class Feed:
    """The batches of worker `rank` of `size`; `batch_size` is one replica's examples a step."""

    dataset: Dataset
    batch_size: int
    rank: int
    size: int
    replicas: int = 1

    @property
    def global_batch(self) -> int:
        """Examples of all replicas in a step."""
        return self.batch_size * self.size * self.replicas

    @functools.cached_property
    def _share(self) -> Share | None:
        """What this worker reads of data that is read in its order."""
        return self.dataset.share(self.rank, self.size, self.replicas) if isinstance(self.dataset, Shared) else None

    def validates(self, *, whole_only: bool) -> bool:
        """Whether there is a batch to validate on, for any of the workers, or with `whole_only` a whole one."""
        return self.dataset.validation_size >= (self.batch_size if whole_only else 1)

    def train_batches(self, position: int) -> list[dict[str, np.ndarray]]:
        """A batch for each replica of this worker in the step that begins when `position` examples have been consumed
        by all."""
        if self._share is not None:
            return self._share.train_batches(position)
        first = self.rank * self.replicas
        return [
            self.dataset.train_batch(position + number * self.batch_size, self.batch_size)
            for number in range(first, first + self.replicas)
        ]

    @functools.cached_property
    def any_batch(self) -> dict[str, np.ndarray]:
        """A replica's batch whose values do not matter. To make it does not move on where data is read in its order."""
        return self.dataset.train_batch(0, self.batch_size)

    def examples_in(self, batch: dict[str, np.ndarray]) -> int:
        """How many examples a batch has."""
        return examples_in(batch, self.dataset.features)

    def validation_batches(self, *, whole_only: bool) -> Iterator[dict[str, np.ndarray]]:
        """This worker's share of the validation examples, in batches. The last one of all may be a small one; with
        `whole_only` what is left over is not used."""
        if self._share is not None:
            yield from self._share.validation_batches(whole_only=whole_only)
            return
        examples = self.dataset.validation_size
        for start in range(self.rank * self.batch_size, examples, self.size * self.batch_size):
            size = min(self.batch_size, examples - start)
            if size == self.batch_size or not whole_only:
                yield self.dataset.validation_batch(start, size)
