"""Decides which epochs of `fit` end with a validation, and converts the validation data to the type of the training
data: arrays or a `tf.data.Dataset`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from parallax_runner.data.batch_structure import packed, unpacked
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


def as_dataset(given: Any, *, batch_size: int, steps: int | None) -> Any:
    """Returns the validation data as a dataset. If `steps` is not None, returns only the first `steps` batches."""
    import keras
    import tensorflow as tf

    found = given
    if not isinstance(found, tf.data.Dataset):
        element = keras.tree.lists_to_tuples(packed(*unpacked(found)))
        found = tf.data.Dataset.from_tensor_slices(element).batch(batch_size)
    return found if steps is None else found.take(steps)


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
