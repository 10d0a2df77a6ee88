"""The interface of a data set: an endless stream of shuffled examples, numbered from 0.

A step reads a range of the stream, and each rank reads a part of that range, so a single number is the data position of
a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Feature:
    """A named input of a model, as in a single example, without the batch dimension.

    A batch has a dense feature as an array [size, *shape] under its name. It has a ragged or sparse feature as several
    component arrays under `name/component`, whose first dimensions differ from batch to batch:
    - ragged: `values` [n, *shape[ragged_rank:]], and for each ragged dimension an int64 array `row_splits`,
      `row_splits_1`, …, of which the first has shape [size + 1];
    - sparse: `indices` int64 [n, 1 + len(shape)], `values` [n], `dense_shape` int64 [1 + len(shape)].
    """

    shape: tuple[int | None, ...]  # None: unknown or ragged
    dtype: str  # NumPy's name, such as "int32" or "float32"
    kind: Literal["dense", "ragged", "sparse"] = "dense"
    ragged_rank: int = 0  # number of dimensions after the batch up to the last ragged one

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components in TensorFlow's order; empty for a dense feature."""
        if self.kind == "ragged":
            return ("values", "row_splits", *(f"row_splits_{number}" for number in range(1, self.ragged_rank)))
        return ("indices", "values", "dense_shape") if self.kind == "sparse" else ()


class Dataset(Protocol):
    """Examples for training and validation. A batch maps names to arrays, as described in `Feature`."""

    features: dict[str, Feature]
    words_per_example: int | None  # None: the examples have no words
    train_size: int  # examples in one epoch, at least 1
    validation_size: int  # examples, 0 if there are none

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns examples [start, start + size) of the endless stream; the range may cross epochs."""
        ...

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns validation examples [start, start + size), in a fixed order.

        Raises IndexError if the range is not within [0, validation_size).
        """
        ...


class Share(Protocol):
    """The part of a sequentially read data set that one worker reads."""

    def train_batches(self, position: int) -> list[dict[str, np.ndarray]]:
        """Returns a batch for each replica, for the step that starts after `position` examples of all workers.
        Positions must increase."""
        ...

    def validation_batches(self, *, whole_only: bool) -> Iterator[dict[str, np.ndarray]]:
        """Yields the worker's share of the validation examples in batches; with `whole_only`, only full batches."""
        ...


@runtime_checkable
class Shared(Protocol):
    """A `Dataset` that is read sequentially, a share by each worker."""

    def share(self, rank: int, ranks: int, replicas: int) -> Share:
        """Returns the share of worker `rank` among `ranks` workers with `replicas` replicas each."""
        ...


def examples_in(batch: Mapping[str, np.ndarray], features: Mapping[str, Feature]) -> int:
    """Returns the number of examples in a batch of these features."""
    name, feature = next(iter(features.items()))
    if feature.kind == "ragged":
        return len(batch[f"{name}/row_splits"]) - 1
    return int(batch[f"{name}/dense_shape"][0]) if feature.kind == "sparse" else len(batch[name])


def numbering_of(dataset: Dataset) -> str:
    """Returns a digest of what the ids of a data set stand for, such as its vocabulary; empty if it has none."""
    return str(getattr(dataset, "numbering", ""))
