"""The batches of a Python generator for `fit`. A generator is read once, in order."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from parallax_runner.errors import ConfigError, DataError

KIND = "generator"
_EARLY = 2  # batches that stay, because the features and the trial of a loss are made from them


@dataclass
class _Read:
    """What a generator has yielded: its first batches, and the number of all batches."""

    early: list[Any]
    count: int


_read_before: weakref.WeakKeyDictionary[Any, _Read] = weakref.WeakKeyDictionary()


def is_generator(given: Any) -> bool:
    """Returns whether `given` is a generator."""
    return inspect.isgenerator(given)


class GeneratedBatches:
    """The batches that a generator yields, with the methods of a `keras.utils.PyDataset` that `fit` calls. Batches are
    counted from the generator's start, also if an earlier call of `fit` has read some."""

    def __init__(self, given: Generator[Any, Any, Any]) -> None:
        self._given = given
        if given not in _read_before:
            early = list(itertools.islice(given, _EARLY))
            _read_before[given] = _Read(early, len(early))
        self._read = _read_before[given]
        self.num_batches = None if self._read.early else 0

    def __getitem__(self, index: int) -> Any:
        """Returns batch `index`. Raises DataError if the generator ends before it, or has already gone past it."""
        if index < len(self._read.early):
            return _tuple(self._read.early[index])
        if index < self._read.count:
            raise DataError(f"x (fit): batch {index} of the {KIND} is gone: a {KIND} is read once")
        while self._read.count < index:
            self._advanced()
        return _tuple(self._advanced())

    def on_epoch_begin(self) -> None:
        """Does nothing: a generator goes on from epoch to epoch."""

    def on_epoch_end(self) -> None:
        """Does nothing: a generator goes on from epoch to epoch."""

    def _advanced(self) -> Any:
        try:
            batch = next(self._given)
        except StopIteration:
            raise DataError(
                f"x (fit): the {KIND} ended after {self._read.count} batches, but each step needs one: make it "
                "endless, or lower epochs or steps_per_epoch"
            ) from None
        self._read.count += 1
        return batch


def _tuple(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, tuple):
        return batch
    raise ConfigError(
        f"x (fit): the {KIND} yields a {type(batch).__name__}; expected a tuple, as in Keras: (x,), (x, y) or "
        "(x, y, sample_weight)"
    )
