"""A dataset that computes its examples when they are read and does not keep them in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parallax_runner.data.dataset import Feature
from parallax_runner.data.digest import digest_of
from parallax_runner.data.identity import EXAMPLES, FIRST, FIRST_EXAMPLES, Contents
from parallax_runner.data.memory import check_fits
from parallax_runner.data.stream import ShuffledStream
from parallax_runner.data.strings import dtype_name
from parallax_runner.errors import ConfigError, Setting

_BYTES_PER_EXAMPLE = 3 * 8  # the orders of two epochs, and the sort keys of one epoch


class GeneratedDataset:
    """Implements `Dataset` with a function that computes examples from their indices."""

    words_per_example: int | None = None

    def __init__(
        self,
        make: Callable[[np.ndarray], dict[str, np.ndarray]],
        *,
        train_size: int,
        validation_size: int,
        seed: int,
    ) -> None:
        """`make` converts example indices, int64 [size], to a batch. Training examples have indices below `train_size`;
        validation examples have indices from `train_size` on."""
        self.features = {name: Feature(array.shape[1:], dtype_name(array)) for name, array in make(_NO_NUMBERS).items()}
        self.train_size = train_size
        self.validation_size = validation_size
        self._make = make
        self._seed = seed
        self._stream = ShuffledStream(size=train_size, seed=seed)

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        return self._make(self._stream.elements(start, size))

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        if start < 0 or start + size > self.validation_size:
            raise IndexError(
                f"validation examples [{start}, {start + size}) out of range: there are {self.validation_size}"
            )
        return self._make(np.arange(start, start + size, dtype=np.int64) + self.train_size)

    def training_rows(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns the training examples with the indices [start, start + size)."""
        return self._make(np.arange(start, start + size, dtype=np.int64))

    def sizes(self) -> dict[str, str]:
        """Returns the number of training examples."""
        return {EXAMPLES: str(self.train_size)}

    def contents(self) -> Contents:
        """Returns digests of the examples with the lowest indices."""
        first = np.arange(min(FIRST_EXAMPLES, self.train_size), dtype=np.int64)
        held_back = np.arange(min(FIRST_EXAMPLES, self.validation_size), dtype=np.int64) + self.train_size
        return Contents(
            training={FIRST: digest_of(self._make(first))},
            order=f"seed {self._seed}",
            validation={FIRST: digest_of(self._make(held_back))},
        )


_NO_NUMBERS = np.zeros(0, dtype=np.int64)


def check_sizes(examples: int, validation_examples: int) -> None:
    """Raises ConfigError if a number of examples is out of range, or if the order of the examples does not fit in
    memory."""
    if examples < 1:
        raise ConfigError("expected at least 1 example to train on.").about(Setting.of("data.examples", examples))
    if validation_examples < 0:
        raise ConfigError("expected 0 (no validation) or more.").about(
            Setting.of("data.validation_examples", validation_examples)
        )
    check_fits(
        _BYTES_PER_EXAMPLE * (examples + validation_examples),
        examples=examples,
        validation_examples=validation_examples,
    )
