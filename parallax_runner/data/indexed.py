"""A dataset made of anything with `__len__` and `__getitem__`, such as a list, Grain's MapDataset or a dataset of
Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset, Feature
from parallax_runner.data.from_arrays import common_length
from parallax_runner.data.stream import ShuffledStream
from parallax_runner.errors import DataError

Batch = dict[str, np.ndarray]


@runtime_checkable
class Source(Protocol):
    """Examples by number, from 0 on. Each is a mapping from names to numbers or arrays of numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


def is_source(made: Any) -> bool:
    """Returns whether a data function returned a source of examples, or arrays by name."""
    if isinstance(made, Mapping):
        return bool(made) and all(hasattr(value, "__len__") for value in made.values())
    return isinstance(made, Source) and not isinstance(made, str | bytes)


def of_source(train: Any, validation: Any, *, seed: int) -> Dataset:
    """Returns the dataset of a source, or of arrays by name, with one row for each example.

    Floating-point numbers of Python become float32, and its integers int64. The examples are shuffled with `seed`.
    Raises DataError if the examples are no mappings of numbers, or differ in their names, shapes or dtypes.
    """
    if isinstance(train, Mapping):
        return _of_arrays(train, {} if validation is None else validation, seed)
    return Indexed(train, validation, seed=seed)


def _of_arrays(train: Mapping[str, Any], validation: Mapping[str, Any], seed: int) -> Dataset:
    trained, validated = ({name: _array(value) for name, value in part.items()} for part in (train, validation))
    _check_size(common_length(trained, "the arrays for training"))
    if validated:
        common_length(validated, "the arrays for validation")
        if _rows_of(trained) != _rows_of(validated):
            raise DataError(
                f"a row for training has {_told(_rows_of(trained))}; a row for validation has "
                f"{_told(_rows_of(validated))}. Expected the same names, shapes and dtypes"
            )
    if not validated:
        validated = {name: rows[:0] for name, rows in trained.items()}
    return ArrayDataset(train=trained, validation=validated, words_per_example=None, seed=seed)


class Indexed:
    """Implements `Dataset` with a source. A batch asks for each of its examples alone, or for all at once if the source
    has the method `__getitems__`, as datasets of Hugging Face and PyTorch have."""

    words_per_example: int | None = None

    def __init__(self, train: Source, validation: Source | None, *, seed: int) -> None:
        """Reads the first example. Raises DataError as `of_source` does."""
        self.train_size = len(train)
        self.validation_size = 0 if validation is None else len(validation)
        _check_size(self.train_size)
        self._train, self._validation = train, validation
        self.features = _features_of(_example(train[0], 0))
        self._stream = ShuffledStream(size=self.train_size, seed=seed)

    def train_batch(self, start: int, size: int) -> Batch:
        return self._batch(self._train, self._stream.elements(start, size).tolist())

    def validation_batch(self, start: int, size: int) -> Batch:
        if start < 0 or start + size > self.validation_size:
            raise IndexError(
                f"validation examples [{start}, {start + size}) out of range: there are {self.validation_size}"
            )
        assert self._validation is not None
        return self._batch(self._validation, list(range(start, start + size)))

    def _batch(self, source: Source, numbers: Sequence[int]) -> Batch:
        read = getattr(source, "__getitems__", None)
        found = [source[number] for number in numbers] if read is None else read(numbers)
        examples = [_example(one, number) for one, number in zip(found, numbers, strict=True)]
        for example, number in zip(examples, numbers, strict=True):
            features = _features_of(example)
            if features != self.features:
                raise DataError(
                    f"example {number} has {_told(features)}; expected the names, shapes and dtypes of example 0: "
                    f"{_told(self.features)}"
                )
        return {name: np.stack([example[name] for example in examples]) for name in self.features}


def _example(found: Any, number: int) -> dict[str, np.ndarray]:
    """Returns the arrays of an example by name."""
    if not isinstance(found, Mapping) or not found:
        raise DataError(
            f"example {number} is of type {type(found).__name__}; expected a mapping from names to numbers or arrays"
        )
    arrays = {str(name): _array(value) for name, value in found.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
            raise DataError(
                f"«{name}» of example {number} is of type {array.dtype}; expected numbers. data=table reads strings"
            )
    return arrays


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    is_of_python = not hasattr(value, "dtype")
    return array.astype(np.float32) if is_of_python and array.dtype == np.float64 else array


def _features_of(example: Mapping[str, np.ndarray]) -> dict[str, Feature]:
    return {name: Feature(array.shape, array.dtype.name) for name, array in example.items()}


def _rows_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Feature]:
    return {name: Feature(array.shape[1:], array.dtype.name) for name, array in arrays.items()}


def _check_size(count: int) -> None:
    if count < 1:
        raise DataError("there are no examples to train on")


def _told(features: Mapping[str, Feature]) -> str:
    return ", ".join(f"{name} {one.dtype} {list(one.shape)}" for name, one in sorted(features.items()))
