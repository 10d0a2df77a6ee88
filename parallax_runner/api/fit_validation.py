"""Decides which epochs of `fit` end with a validation, and converts the validation data to the type of the training
data: arrays or a `tf.data.Dataset`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

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


def epochs_between(frequency: int | list[int], initial_epoch: int, epochs: int) -> int:
    """Returns the largest interval in epochs at which each requested validation takes place, or 0 if none is requested.
    The interval is counted from `initial_epoch`. Logs omit the validations that were not requested."""
    numbers = range(initial_epoch + 1, epochs + 1)
    return math.gcd(*(number - initial_epoch for number in numbers if ends_with_validation(number, frequency)))


def as_arrays(given: Any, *, batch_size: int, steps: int | None) -> Any:
    """Returns the validation data as arrays. If `steps` is not None, returns only the first `steps` batches.

    Raises ConfigError if a dataset cannot be converted to arrays that are the same in each process.
    """
    import tensorflow as tf

    if isinstance(given, tf.data.Dataset):
        return _read(given if steps is None else given.take(steps))
    if steps is None:
        return given
    return tf.nest.map_structure(lambda array: array[: steps * batch_size], given)


def as_datasets(train: Any, given: Any, *, batch_size: int, steps: int | None) -> tuple[Any, Any]:
    """Returns the training data and the validation data as datasets with the same structure. If only one of them has
    weights, the examples of the other get the weight 1. If `steps` is not None, returns only the first `steps` batches
    of the validation data."""
    import tensorflow as tf

    found = given
    if not isinstance(found, tf.data.Dataset):
        found = tf.data.Dataset.from_tensor_slices(_without_lists(found)).batch(batch_size)
    if steps is not None:
        found = found.take(steps)
    parts = [spec if isinstance(spec, tuple) else (spec,) for spec in (train.element_spec, found.element_spec)]
    lengths = [len(part) for part in parts]
    if lengths == [3, 2]:
        return train, _with_ones(found, parts[0][2])
    if lengths == [2, 3]:
        return _with_ones(train, parts[1][2]), found
    return train, found


def _without_lists(arrays: Any) -> Any:
    """Returns a nest of arrays with tuples in place of lists of arrays, which `tf.data` would join to one array."""
    if isinstance(arrays, Mapping):
        return {key: _without_lists(inner) for key, inner in arrays.items()}
    if isinstance(arrays, tuple) or (isinstance(arrays, list) and any(hasattr(one, "shape") for one in arrays)):
        return tuple(_without_lists(inner) for inner in arrays)
    return arrays


def _with_ones(batches: Any, weights: Any) -> Any:
    """Returns a dataset of (x, y) with weights of 1, which have the type `weights`."""
    import tensorflow as tf

    def ones(spec: Any, y: Any) -> Any:
        """Weights have the shape of the first dimensions of the labels."""
        sizes = tf.shape(tf.nest.flatten(y)[0])
        inner = [sizes[number] if size is None else size for number, size in enumerate(spec.shape) if number > 0]
        return tf.ones([sizes[0], *inner], spec.dtype)

    return batches.map(lambda x, y: (x, y, tf.nest.map_structure(lambda spec: ones(spec, y), weights)))


def _read(dataset: Any) -> Any:
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
        batches = list(FreshCopies.of(dataset, what).make())
        if not batches:
            raise ConfigError(f"{what}: it has no batches")
        return tf.nest.map_structure(lambda *parts: np.concatenate([part.numpy() for part in parts]), *batches)
