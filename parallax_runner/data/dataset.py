"""The noun of this stage: a data set is an endless stream of shuffled examples, numbered from 0.

A step takes a range of the stream and every rank a part of that range, so the data position of a run is one number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Feature:
    """One named input of a model, as one example has it: no batch dimension.

    A batch has a dense feature as an array [size, *shape] under its name. It has the component arrays of another kind
    under «name/component», whose first dimensions differ from batch to batch:
    - ragged: «values» [n, *shape[ragged_rank:]], and for each ragged dimension the int64 array «row_splits»,
      «row_splits_1», …, of which the first one is [size + 1];
    - sparse: «indices» int64 [n, 1 + len(shape)], «values» [n], «dense_shape» int64 [1 + len(shape)].
    """

    shape: tuple[int | None, ...]  # None: not known, or ragged
    dtype: str  # NumPy's name: "int32", "float32"
    kind: Literal["dense", "ragged", "sparse"] = "dense"
    ragged_rank: int = 0  # dimensions of a ragged one, after the batch's, up to the last one that is ragged

    @property
    def components(self) -> tuple[str, ...]:
        """The components in the order that TensorFlow has them in; of a dense feature there are none."""
        if self.kind == "ragged":
            return ("values", "row_splits", *(f"row_splits_{number}" for number in range(1, self.ragged_rank)))
        return ("indices", "values", "dense_shape") if self.kind == "sparse" else ()


class Dataset(Protocol):
    """Examples to train and to validate on. A batch maps names to arrays, as `Feature` says."""

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


def examples_in(batch: Mapping[str, np.ndarray], features: Mapping[str, Feature]) -> int:
    """How many examples a batch of these features has."""
    name, feature = next(iter(features.items()))
    if feature.kind == "ragged":
        return len(batch[f"{name}/row_splits"]) - 1
    return int(batch[f"{name}/dense_shape"][0]) if feature.kind == "sparse" else len(batch[name])


def numbering_of(dataset: Dataset) -> str:
    """What a data set says that its numbers stand for, words for example: it changes with them. Empty if nothing."""
    return str(getattr(dataset, "numbering", ""))
