"""The noun of this stage: a data set is an endless stream of shuffled examples, numbered from 0.

A step takes a range of the stream and every rank a part of that range, so the data position of a run is one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Feature:
    """One named input of a model, as one example has it: no batch dimension."""

    shape: tuple[int, ...]
    dtype: str  # NumPy's name: "int32", "float32"


class Dataset(Protocol):
    """Examples to train and to validate on. A batch maps each feature's name to an array [size, *feature.shape]."""

    features: dict[str, Feature]
    words_per_example: int | None  # None: words per second make no sense
    train_size: int  # examples in one epoch, at least 1
    validation_size: int  # examples, 0 when there are none

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Return examples [start, start + size) of the endless stream; the range may cross epochs."""
        ...

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Return validation examples [start, start + size), in a fixed order.

        Raises IndexError when the range leaves [0, validation_size).
        """
        ...


class Share(Protocol):
    """What one worker reads of data that is read in its order."""

    def train_batches(self, position: int) -> list[dict[str, np.ndarray]]:
        """A batch for each replica in the step that begins after `position` examples of all workers; positions rise."""
        ...

    def validation_batches(self, *, whole_only: bool) -> Iterator[dict[str, np.ndarray]]:
        """The worker's share of the validation examples, in batches; with `whole_only` in whole ones alone."""
        ...


@runtime_checkable
class Shared(Protocol):
    """A `Dataset` that is read in its order: each worker takes a share."""

    def share(self, rank: int, ranks: int, replicas: int) -> Share:
        """What a worker reads of `ranks`, each with so many replicas."""
        ...


def numbering_of(dataset: Dataset) -> str:
    """What a data set says that its numbers stand for, words for example: it changes with them. Empty if nothing."""
    return str(getattr(dataset, "numbering", ""))
