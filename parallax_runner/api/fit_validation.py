"""Decides which epochs of `fit` end with a validation, and converts the validation data to the type of the training
data: arrays or a `tf.data.Dataset`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from parallax_runner.data.batch_structure import packed, unpacked
from parallax_runner.data.from_arrays import batch_sizes
from parallax_runner.errors import ConfigError, Setting

KERAS_BATCH = 32  # Keras' default


def check_frequency(frequency: Any) -> None:
    """Raises ConfigError if Keras would not accept `validation_freq`, or if an epoch in it is less than 1."""
    numbers = frequency if isinstance(frequency, list) else [frequency]
    if any(not isinstance(one, int) or isinstance(one, bool) or one < 1 for one in numbers):
        raise ConfigError("expected an integer, at least 1, or a list of epochs, counted from 1").about(
            Setting("validation_freq", repr(frequency), where="fit")
        )


def ends_with_validation(number: int, frequency: int | list[int]) -> bool:
    """Returns whether epoch `number`, counted from 1, ends with a validation."""
    return number in frequency if isinstance(frequency, list) else number % frequency == 0


@dataclass(frozen=True)
class Schedule:
    """The epochs of a call that end with a validation: those that `frequency` asks for, after epoch `first`."""

    first: int = 0
    frequency: int | list[int] = 1

    def before(self, epochs: int) -> int:
        """Returns the number of validations before the end of the call's last one of `epochs` epochs."""
        numbers = range(self.first + 1, self.first + epochs)
        return sum(ends_with_validation(number, self.frequency) for number in numbers)


def epochs_between(frequency: int | list[int], initial_epoch: int, epochs: int) -> int:
    """Returns the largest interval in epochs at which each requested validation takes place, or 0 if none is requested.
    The interval is counted from `initial_epoch`. Logs omit the validations that were not requested."""
    numbers = range(initial_epoch + 1, epochs + 1)
    return math.gcd(*(number - initial_epoch for number in numbers if ends_with_validation(number, frequency)))


@dataclass(frozen=True)
class InBatches:
    """Examples in batches. `arrays` is a nest of arrays with the rows of all batches, in order. `sizes` are the numbers
    of rows in each batch."""

    arrays: Any
    sizes: tuple[int, ...]

    @classmethod
    def of_size(cls, arrays: Any, size: int) -> Self:
        """Returns arrays in batches of `size` rows, of which the last one can be smaller."""
        import keras

        return cls(arrays, tuple(batch_sizes(len(keras.tree.flatten(arrays)[0]), size)))

    @classmethod
    def joined(cls, batches: Sequence[Any], what: str) -> Self:
        """Returns these batches, which are nests of arrays. `what` is their name. Raises ConfigError if they differ in
        the shape of an example."""
        import keras

        def rows_of(*parts: Any) -> Any:
            shapes = {np.shape(part)[1:] for part in parts if part is not None}
            if len(shapes) > 1:
                raise ConfigError(
                    f"{what}: the shape of an example differs between batches: {sorted(shapes)}; the batches of arrays "
                    "cannot have different shapes, so pass x as a tf.data.Dataset or a keras.utils.PyDataset, too"
                )
            return None if parts[0] is None else np.concatenate(parts)

        sizes = tuple(len(keras.tree.flatten(batch)[0]) for batch in batches)
        return cls(keras.tree.map_structure(rows_of, *batches), sizes)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first row of each batch, and the row after its last row."""
        ends = np.cumsum(self.sizes)
        return ends - self.sizes, ends


def as_arrays(given: Any, *, batch_size: int, steps: int | None) -> InBatches:
    """Returns the validation data as arrays, in the batches that Keras would make. If `steps` is not None, returns only
    the first `steps` batches.

    Raises ConfigError if a dataset cannot be converted to arrays that are the same in each process.
    """
    import tensorflow as tf

    if isinstance(given, InBatches):
        return given
    if isinstance(given, tf.data.Dataset):
        return _read(given if steps is None else given.take(steps))
    end = None if steps is None else steps * batch_size
    used = tf.nest.map_structure(lambda array: None if array is None else array[:end], given)
    return InBatches.of_size(used, batch_size)


def as_dataset(given: Any, *, batch_size: int, steps: int | None) -> Any:
    """Returns the validation data as a dataset. If `steps` is not None, returns only the first `steps` batches."""
    import keras
    import tensorflow as tf

    if isinstance(given, InBatches):
        return _dataset_of(given)
    found = given
    if not isinstance(found, tf.data.Dataset):
        element = keras.tree.lists_to_tuples(packed(*unpacked(found)))
        found = tf.data.Dataset.from_tensor_slices(element).batch(batch_size)
    return found if steps is None else found.take(steps)


def _dataset_of(given: InBatches) -> Any:
    import keras
    import tensorflow as tf

    with tf.device("CPU:0"):
        arrays = tf.nest.map_structure(tf.constant, keras.tree.lists_to_tuples(packed(*unpacked(given.arrays))))

    def batch(first: Any, end: Any) -> Any:
        return tf.nest.map_structure(lambda array: array[first:end], arrays)

    return tf.data.Dataset.from_tensor_slices(given.bounds()).map(batch)


def with_weights_like(dataset: Any, other: Any) -> tuple[Any, bool]:
    """Returns the dataset, and whether its examples have weights of their own. If only the examples of `other` have
    weights, adds weights of 1, because both datasets must have the same features."""
    import tensorflow as tf

    specs = dataset.element_spec, other.element_spec
    if [len(spec) if isinstance(spec, tuple) else 1 for spec in specs] != [2, 3]:
        return dataset, True

    def with_ones(x: Any, y: Any) -> Any:
        rows = tf.shape(tf.nest.flatten(y)[0])[0]
        any_size = tf.minimum(rows, 1)  # TensorFlow does not know it, so that other sizes fit, too

        def ones(like: Any) -> Any:
            return tf.ones([rows, *(any_size if size is None else size for size in like.shape[1:])], like.dtype)

        return x, y, tf.nest.map_structure(ones, specs[1][2])

    return dataset.map(with_ones), False


def _read(dataset: Any) -> InBatches:
    """Reads a dataset of batches into arrays."""
    import tensorflow as tf

    from parallax_runner.graph.tf_data.batches import eagerly
    from parallax_runner.graph.tf_data.fresh_copy import FreshCopies
    from parallax_runner.graph.tf_data.repeatable import why_not_repeatable

    what = "validation_data (fit)"
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
        raise ConfigError(f"{what}: it has ragged or sparse features, but x is an array: pass x as a tf.data.Dataset")
    with eagerly():
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ConfigError(f"{what}: it never ends: set validation_steps, or use .take(…)")
        reason = why_not_repeatable(dataset)
        if reason is not None:
            raise ConfigError(
                f"{what}: its order cannot be repeated: {reason}. All workers must read it in the same order: "
                "remove the shuffle, or give it a seed"
            )
        read = FreshCopies.of(dataset, what).make()
        batches = [tf.nest.map_structure(lambda part: part.numpy(), batch) for batch in read]
        if not batches:
            raise ConfigError(f"{what}: it has no batches")
        return InBatches.joined(batches, what)
