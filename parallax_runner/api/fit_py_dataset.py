"""Makes the batches of a `keras.utils.PyDataset` for `fit`, and of validation data beside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from parallax_runner.api.fit_arrays import readable
from parallax_runner.api.fit_validation import as_arrays
from parallax_runner.data.batch_structure import BatchStructure, unpacked
from parallax_runner.data.from_arrays import both_with_weights
from parallax_runner.data.python_batches import Batch, PythonBatches
from parallax_runner.errors import ConfigError, DataError, Setting


def is_py_dataset(given: Any) -> bool:
    """Returns whether `given` is a `keras.utils.PyDataset`."""
    import keras

    return isinstance(given, keras.utils.PyDataset)


def py_dataset_of(
    train: Any,
    validation: Any,
    *,
    class_weight: dict[int, float] | None,
    shuffle: bool,
    validation_batch: int,
    validation_steps: int | None,
    steps_per_epoch: int | None,
) -> PythonBatches:
    """Returns the dataset for `train`, a `keras.utils.PyDataset`. `validation` is one, too, or arrays, a
    `tf.data.Dataset`, or None.

    Raises ConfigError or DataError if the batches cannot be divided among workers.
    """
    reader = PyDatasetReader(train, "x", class_weight)
    if reader.count is None and steps_per_epoch is None:
        raise ConfigError("the data never ends").about(
            Setting("steps_per_epoch", "None", where="fit"), remedy="set the number of steps per epoch"
        )
    if reader.count == 0:
        raise DataError("x (fit): the keras.utils.PyDataset has no batches")
    element, held_back = reader.element(0), None
    structure = validation_structure = _structure_of(element)
    if validation is not None:
        held_back = _validation_reader(validation, validation_batch, validation_steps)
        validated = held_back.element(0)
        validation_structure = _structure_of(validated)
        element, other = both_with_weights(element, validated)
        _check_same(_structure_of(element), _structure_of(other))
        held_back.weights_like = other[2]
    reader.weights_like = element[2]
    return PythonBatches(reader, held_back, structure, validation_structure, shuffle=shuffle)


def arrays_of(given: Any, what: str, steps: int | None) -> Any:
    """Makes all batches of a `keras.utils.PyDataset`, or the first `steps`, and returns their rows as arrays."""
    import keras

    reader = PyDatasetReader(given, what, None, steps)
    if not reader.count:
        raise ConfigError(f"{what} (fit): expected a keras.utils.PyDataset with at least one batch")
    elements = [reader.element(index) for index in range(reader.count)]
    joined = keras.tree.map_structure(lambda *parts: None if parts[0] is None else np.concatenate(parts), *elements)
    return joined[:2] if joined[2] is None else joined


class PyDatasetReader:
    """Implements `Reader`. `what` is the name of the argument. If `weights_like` is not None, a batch without weights
    gets weights of 1 like these. `most` limits the number of batches."""

    def __init__(
        self, given: Any, what: str, class_weight: dict[int, float] | None = None, most: int | None = None
    ) -> None:
        self._given, self._what, self._class_weight = given, what, class_weight
        counted: int | None = given.num_batches
        self.count = counted if most is None or (counted is not None and counted < most) else most
        self.weights_like: Any = None
        self._pass: int | None = None

    def element(self, index: int) -> tuple[Any, Any, Any]:
        """Makes batch `index` as (x, y, sample_weight). A missing part is None. Raises ConfigError or DataError if it
        is not made of arrays of numbers."""
        made = self._given[index]
        parts = tuple(made) if isinstance(made, list) else made  # as in Keras
        x, y, weights = unpacked(readable(parts, self._what))
        if self._class_weight is None:
            return x, y, weights
        if weights is not None:
            raise ConfigError(f"class_weight (fit): {self._what} already has weights; remove class_weight")
        from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

        return x, y, class_weight_to_sample_weights(y, self._class_weight)

    def read(self, index: int) -> Batch:
        """Makes batch `index`. Raises DataError if its arrays have different numbers of rows, or no rows."""
        return _batch_of(self.element(index), self.weights_like, f"batch {index} of {self._what}")

    def go_to_pass(self, number: int) -> None:
        """Calls `on_epoch_begin` and `on_epoch_end` as Keras does before pass `number`."""
        if self._pass is None:
            self._pass = 0
            self._given.on_epoch_begin()
        while self._pass < number:
            self._given.on_epoch_end()
            self._pass += 1
            self._given.on_epoch_begin()


class ArraysReader:
    """Implements `Reader` for arrays `given`, (x, y) or (x, y, sample_weight), in batches of `size` examples."""

    def __init__(self, given: Any, size: int) -> None:
        self._given, self._size = unpacked(given), size
        self.weights_like: Any = None
        import keras

        self.count = -(-len(keras.tree.flatten(self._given[0])[0]) // size)

    def element(self, index: int) -> tuple[Any, Any, Any]:
        """Returns batch `index` as (x, y, sample_weight)."""
        import keras

        rows = slice(index * self._size, (index + 1) * self._size)
        found: tuple[Any, Any, Any] = keras.tree.map_structure(
            lambda array: None if array is None else array[rows], self._given
        )
        return found

    def read(self, index: int) -> Batch:
        """Returns batch `index`."""
        return _batch_of(self.element(index), self.weights_like, "validation_data")

    def go_to_pass(self, number: int) -> None:
        """Does nothing, because all passes are the same."""


def _validation_reader(given: Any, batch_size: int, steps: int | None) -> PyDatasetReader | ArraysReader:
    """Returns the reader of the validation data. Raises ConfigError if it never ends."""
    if not is_py_dataset(given):
        return ArraysReader(as_arrays(given, batch_size=batch_size, steps=steps), batch_size)
    reader = PyDatasetReader(given, "validation_data", most=steps)
    if reader.count is None:
        raise ConfigError("validation_data (fit): it never ends: set validation_steps")
    if reader.count == 0:
        raise ConfigError("validation_data (fit): it has no batches")
    return reader


def _batch_of(element: tuple[Any, Any, Any], weights_like: Any, what: str) -> Batch:
    if weights_like is not None:
        element = both_with_weights(element, (element[0], element[1], weights_like))[0]
    batch: Batch = _structure_of(element).flatten(_parts_of(element))
    lengths = {name: len(array) if array.ndim else 0 for name, array in batch.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()):
        told = ", ".join(f"{length} for «{name}»" for name, length in lengths.items())
        raise DataError(f"{what}: expected arrays of the same length, at least 1, found {told}")
    return batch


def _parts_of(element: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    """Returns the element without its missing parts, as Keras passes it to a step."""
    return tuple(part for part in element if part is not None)


def _structure_of(element: tuple[Any, Any, Any]) -> BatchStructure:
    return BatchStructure.of(_parts_of(element))


def _check_same(train: BatchStructure, validation: BatchStructure) -> None:
    if not validation.has_form_of(train):
        raise DataError(f"validation_data has the features {validation.names}, but the training data has {train.names}")
