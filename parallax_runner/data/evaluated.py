"""The examples that `action=evaluate` and `action=predict` read instead of the validation examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, Feature, Shared
from parallax_runner.errors import ConfigError, Setting

VALIDATION, TRAIN, TEST = "validation", "train", "test"
PARTS = (VALIDATION, TRAIN, TEST)


@runtime_checkable
class Tested(Protocol):
    """A `Dataset` with test examples."""

    @property
    def test_size(self) -> int:
        """The number of test examples."""
        ...

    def test_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns test examples [start, start + size), in a fixed order. Raises IndexError beyond them."""
        ...


@runtime_checkable
class InOrder(Protocol):
    """A `Dataset` whose training examples can be read in their own order, without a shuffle."""

    def training_rows(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns training examples [start, start + size) in their own order."""
        ...


def part_to_evaluate(config: RunConfig) -> str | None:
    """Returns the part whose loss the run computes, beside that of the training steps, or None if there is none."""
    return config.read.part if action_of(config).validates else None


def evaluated(config: RunConfig, dataset: Dataset) -> Dataset:
    """Returns the dataset that `config` evaluates: with the examples of `read.part` as its validation examples.

    Raises ConfigError if the data has no such part, or cannot be read by position.
    """
    part = config.read.part
    if part == VALIDATION:
        return dataset
    if isinstance(dataset, Shared):
        raise _refusal(part, "the data is read in order; let the data function return this part as validation data")
    if part == TEST and not (isinstance(dataset, Tested) and dataset.test_size):
        raise _refusal(part, "the data has no test examples")
    return EvaluatedPart(dataset, part)


def _refusal(part: str, reason: str) -> ConfigError:
    return ConfigError(f"{reason}.").about(Setting("read.part", part))


class EvaluatedPart:
    """Implements `Dataset` for the same examples, with one of the other parts as validation examples."""

    validation_rows = None  # the part has no batches of its own

    def __init__(self, dataset: Dataset, part: str) -> None:
        self._dataset, self._part = dataset, part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features of an example, by name."""
        return self._dataset.features

    @property
    def validation_size(self) -> int:
        """The number of examples of the part. Partial batches of training examples are not counted as full."""
        if self._part == TRAIN:
            return int(getattr(self._dataset, "train_rows_count", self._dataset.train_size))
        assert isinstance(self._dataset, Tested)
        return self._dataset.test_size

    @property
    def is_in_order(self) -> bool:
        """Whether example i is row i of the part. Otherwise, the training examples are in the order of a pass."""
        return self._part != TRAIN or isinstance(self._dataset, InOrder)

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns examples [start, start + size) of the part."""
        if start < 0 or start + size > self.validation_size:
            raise IndexError(f"examples [{start}, {start + size}) out of range: there are {self.validation_size}")
        if self._part == TRAIN:
            if isinstance(self._dataset, InOrder):
                return self._dataset.training_rows(start, size)
            return self._dataset.train_batch(start, size)
        assert isinstance(self._dataset, Tested)
        return self._dataset.test_batch(start, size)
