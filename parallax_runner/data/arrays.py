"""A dataset whose examples are the rows of in-memory or memory-mapped arrays."""

from __future__ import annotations

import numpy as np

from parallax_runner.data.dataset import Feature
from parallax_runner.data.digest import digest_of
from parallax_runner.data.identity import CONTENT, EXAMPLES, Contents
from parallax_runner.data.mapped_file import MappedFile
from parallax_runner.data.stream import ShuffledStream
from parallax_runner.data.strings import dtype_name


class ArrayDataset:
    """Implements `Dataset`. Each feature is an array with one row per example."""

    def __init__(
        self,
        *,
        train: dict[str, np.ndarray],
        validation: dict[str, np.ndarray],
        words_per_example: int | None,
        seed: int,
        train_file: MappedFile | None = None,
        validation_file: MappedFile | None = None,
        numbering: str = "",
        digest: str = "",
        missing_validation: str = "",
    ) -> None:
        """`train` and `validation` have the same features. All arrays in `train` have the same number of rows, and so
        do all arrays in `validation`. `train_file` and `validation_file` are the files behind memory-mapped arrays.
        Reading a batch raises DataError if its file has been deleted or truncated. `digest` is a known digest of
        `train`. `missing_validation` is the reason why there are no validation examples although they were requested.
        """
        self.features = {name: Feature(array.shape[1:], dtype_name(array)) for name, array in train.items()}
        self.words_per_example = words_per_example
        self.train_size = _rows(train)
        self.validation_size = _rows(validation)
        self.numbering = numbering
        self.missing_validation = missing_validation
        self._digest, self._seed = digest, seed
        self._train = train
        self._validation = validation
        self._train_file, self._validation_file = train_file, validation_file
        self._stream = ShuffledStream(size=self.train_size, seed=seed)

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        if self._train_file is not None:
            self._train_file.check()
        elements = self._stream.elements(start, size)
        return {name: array[elements] for name, array in self._train.items()}

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        if start < 0 or start + size > self.validation_size:
            raise IndexError(
                f"validation examples [{start}, {start + size}) out of range: there are {self.validation_size}"
            )
        if self._validation_file is not None:
            self._validation_file.check()
        return {name: np.array(array[start : start + size]) for name, array in self._validation.items()}

    def training_rows(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns rows [start, start + size) of the training arrays."""
        if self._train_file is not None:
            self._train_file.check()
        return {name: np.array(array[start : start + size]) for name, array in self._train.items()}

    def sizes(self) -> dict[str, str]:
        """Returns the number of training examples."""
        return {EXAMPLES: str(self.train_size)}

    def contents(self) -> Contents:
        """Returns digests of the arrays."""
        return Contents(
            training={CONTENT: self._digest or digest_of(self._train)},
            order=f"seed {self._seed}",
            validation={CONTENT: digest_of(self._validation)},
        )


def _rows(arrays: dict[str, np.ndarray]) -> int:
    return len(next(iter(arrays.values())))
