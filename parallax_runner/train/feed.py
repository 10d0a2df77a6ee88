"""Which examples a rank sees: a cut of the data's endless stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parallax_runner.data.dataset import Dataset


@dataclass(frozen=True)
class Feed:
    """The batches of one rank of `size`; `batch_size` is the rank's examples a step."""

    dataset: Dataset
    batch_size: int
    rank: int
    size: int

    @property
    def global_batch(self) -> int:
        """Examples of all ranks in a step."""
        return self.batch_size * self.size

    def train_batch(self, position: int) -> dict[str, np.ndarray]:
        """This rank's part of the step that begins when `position` examples have been consumed by all ranks."""
        return self.dataset.train_batch(position + self.rank * self.batch_size, self.batch_size)

    def validation_batches(self) -> Iterator[dict[str, np.ndarray]]:
        """This rank's share of the validation examples, in whole batches: what is left over is not used."""
        batches = self.dataset.validation_size // self.batch_size
        for number in range(self.rank, batches, self.size):
            yield self.dataset.validation_batch(number * self.batch_size, self.batch_size)
