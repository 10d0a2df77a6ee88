"""The interface of a dataset: an endless stream of shuffled examples, numbered from 0.

A step reads a range of the stream, and each rank reads part of that range, so a single number describes a run's
position in the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Feature:
    """A named input of a model, described for a single example, without the batch dimension.

    In a batch, a dense feature is one array [size, *shape] under the feature's name. A ragged or sparse feature is
    several component arrays under `name/component`, whose first dimensions vary from batch to batch:
    - ragged: `values` [n, *shape[ragged_rank:]], and for each ragged dimension an int64 array `row_splits`,
      `row_splits_1`, …, the first of which has shape [size + 1];
    - sparse: `indices` int64 [n, 1 + len(shape)], `values` [n], `dense_shape` int64 [1 + len(shape)].
    """

    shape: tuple[int | None, ...]  # None: the size is unknown or ragged
    dtype: str  # NumPy's name, such as "int32" or "float32", or "string" for arrays of objects of type bytes
    kind: Literal["dense", "ragged", "sparse"] = "dense"
    ragged_rank: int = 0  # number of dimensions after the batch dimension, up to the last ragged dimension

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components in TensorFlow's order. A dense feature has no components."""
        if self.kind == "ragged":
            return ("values", "row_splits", *(f"row_splits_{number}" for number in range(1, self.ragged_rank)))
        return ("indices", "values", "dense_shape") if self.kind == "sparse" else ()


class Dataset(Protocol):
    """Provides examples for training and validation. A batch maps names to arrays, as described in `Feature`."""

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features of an example, by name."""
        ...

    @property
    def words_per_example(self) -> int | None:
        """The number of words in an example, or None if the examples have no words."""
        ...

    @property
    def train_size(self) -> int:
        """The number of examples in one epoch, at least 1. Data with batches of its own counts each batch as full."""
        ...

    @property
    def validation_size(self) -> int:
        """The number of validation examples, or 0 if there are none."""
        ...

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns examples [start, start + size) of the endless stream; the range may cross epochs."""
        ...

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns validation examples [start, start + size), in a fixed order.

        Raises IndexError if the range is not within [0, validation_size).
        """
        ...


class Share(Protocol):
    """One worker's share of a dataset that is read sequentially."""

    def train_batches(self, position: int) -> list[dict[str, np.ndarray]]:
        """Returns one batch per replica, for the step that starts when the workers together have read `position`
        examples. `position` must increase from call to call. If `is_uneven`, each batch contains its `SHARE`."""
        ...

    def validation_batches(self, *, in_parts: bool, step: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yields every N-th validation batch of the data, whole, for N workers. With `in_parts`, yields batches of at
        most the size of a replica's training batch instead. `step` is the step after which the model is validated."""
        ...


@runtime_checkable
class Shared(Protocol):
    """A `Dataset` that is read sequentially. Each worker reads a share."""

    def share(self, rank: int, ranks: int, replicas: int) -> Share:
        """Returns the share of worker `rank` among `ranks` workers with `replicas` replicas each."""
        ...


@runtime_checkable
class ReadByRow(Protocol):
    """A `Dataset` with batches of its own, whose rows can be read in any order."""

    def train_rows(self, start: int, size: int) -> np.ndarray:
        """Returns the numbers of the rows in examples [start, start + size) of the stream, int64. There are fewer than
        `size` if the range contains the end of a partial batch."""
        ...

    def batch_of_rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns a batch of the rows with these numbers."""
        ...


@runtime_checkable
class FromRaw(Protocol):
    """A `Dataset` whose features are computed from raw strings and numbers, which a served model gets instead."""

    def raw_inputs(self, features: Collection[str], tf: Any) -> Mapping[str, Any]:
        """Returns the type of the batches of each raw value from which these features are computed, tf.TensorSpec. `tf`
        is the module TensorFlow."""
        ...

    def served_features(self, features: Collection[str], raw: Mapping[str, Any], tf: Any) -> Mapping[str, Any]:
        """Returns tensors for the features, by the names that a batch has for their arrays, computed from tensors of
        raw values. Lookup tables are added to the current graph."""
        ...

    def raw_examples(self, features: Collection[str], count: int) -> Mapping[str, np.ndarray]:
        """Returns the raw values of `count` examples."""
        ...


def is_uneven(dataset: Dataset, replicas: int) -> bool:
    """Returns whether the `replicas` replicas can get different numbers of examples in some step. Reads nothing.

    That is so if a batch can be partial, or if the number of replicas does not divide the batch size. Data whose
    length is unknown can have a partial batch. Data without batches of its own gives all replicas equally many.
    """
    can_be_partial, size = getattr(dataset, "has_partial_batches", None), global_batch_of(dataset)
    if can_be_partial is None or size is None:
        return False
    return bool(can_be_partial) or size % replicas > 0


def global_batch_of(dataset: Dataset) -> int | None:
    """Returns the size of a full batch of data that has batches of its own, which all replicas share, or None."""
    size = getattr(dataset, "global_batch", None)
    return None if size is None else int(size)


def with_whole_batches(dataset: Dataset) -> Dataset:
    """Returns the dataset without its partial batches. Raises DataError if no batch remains."""
    change = getattr(dataset, "with_whole_batches", None)
    return dataset if change is None else cast(Dataset, change())


def examples_in(batch: Mapping[str, np.ndarray], features: Mapping[str, Feature]) -> int:
    """Returns the number of examples in a batch that has these features."""
    name, feature = next(iter(features.items()))
    if feature.kind == "ragged":
        return len(batch[f"{name}/row_splits"]) - 1
    return int(batch[f"{name}/dense_shape"][0]) if feature.kind == "sparse" else len(batch[name])


def validates_at_least(dataset: Dataset, examples: int) -> bool:
    """Returns whether there are at least `examples` validation examples. Some datasets can tell this without counting
    all of them."""
    reads_no_further = getattr(dataset, "validates_at_least", None)
    if reads_no_further is not None:
        return bool(reads_no_further(examples))
    return dataset.validation_size >= examples


def with_pass_steps(dataset: Dataset, steps: int, examples: int | None = None) -> Dataset:
    """Returns the dataset, with `steps` batches and `examples` examples in a pass if it would have to count them."""
    change = getattr(dataset, "with_pass_steps", None)
    return dataset if change is None else cast(Dataset, change(steps, examples))


def first_steps_of(dataset: Dataset, steps: int) -> Dataset:
    """Returns the dataset for a job that reads at most `steps` batches, so that it need not count the others."""
    change = getattr(dataset, "first_steps", None)
    return dataset if change is None else cast(Dataset, change(steps))


def validation_rows_of(dataset: Dataset) -> Sequence[range] | None:
    """Returns the examples of each validation batch, or None if the validation data has no batches of its own."""
    return cast(Sequence[range] | None, getattr(dataset, "validation_rows", None))


def save_learned(dataset: Dataset, folder: Path) -> None:
    """Writes what a dataset has learned from its training examples, such as a vocabulary, to a folder. Does nothing for
    a dataset that has learned nothing. Raises OSError if the file cannot be written."""
    save = getattr(dataset, "save_learned", None)
    if save is not None:
        folder.mkdir(parents=True, exist_ok=True)
        save(folder)


def numbering_of(dataset: Dataset) -> str:
    """Returns a digest of the list that gives a dataset's ids their meaning, such as a vocabulary. Returns an empty
    string if the dataset has no such digest."""
    return str(getattr(dataset, "numbering", ""))


def why_unread(dataset: Dataset) -> str | None:
    """Returns the reason why a dataset, which only describes the examples for a plan, has none. Returns None for other
    datasets."""
    return cast(str | None, getattr(dataset, "why_unread", None))
