"""Turns the data passed to `fit` into a dataset of global batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallax_runner.api.fit_arrays import readable
from parallax_runner.api.fit_generator import KIND as GENERATOR
from parallax_runner.api.fit_generator import is_generator
from parallax_runner.api.fit_py_dataset import KIND as PY_DATASET
from parallax_runner.api.fit_py_dataset import arrays_of, is_py_dataset, py_dataset_of
from parallax_runner.api.fit_sparse import has_sparse, sparse_dataset, with_sparse_tensors
from parallax_runner.api.fit_validation import KERAS_BATCH, InBatches, as_arrays, as_dataset, with_weights_like
from parallax_runner.data.strings import STRING, dtype_name
from parallax_runner.errors import ConfigError, Setting


def dataset_of(
    x: Any,
    y: Any,
    *,
    batch_size: int | None,
    steps_per_epoch: int | None,
    validation_data: Any,
    validation_split: float,
    validation_steps: int | None,
    validation_batch_size: int | None,
    class_weight: dict[int, float] | None,
    sample_weight: Any,
    shuffle: bool,
    is_exact: Callable[[], bool],
    pass_steps: int | None,
) -> Any:
    """Returns a dataset with `features`, `structure`, `validation_structure`, `global_batch`, `train_size` and
    `validation_size`.

    `pass_steps` is the number of batches in a pass, if the first process has counted them. `is_exact` returns whether
    the order of the data must be repeatable; it is called only for a `tf.data.Dataset`.

    Raises ConfigError or DataError if the data cannot be divided among several workers.
    """
    import tensorflow as tf

    held_back, steps = _read_validation(x, validation_data, validation_steps, validation_batch_size)
    array_batch = batch_size or KERAS_BATCH
    validation = Validation(held_back, steps, validation_batch_size or array_batch)
    tf_data = functools.partial(_of_tf_data, steps_per_epoch=steps_per_epoch, is_exact=is_exact, pass_steps=pass_steps)
    kind = kind_with_batches(x)
    if kind is not None:
        _refuse_for_dataset(kind, validation_split, y=y, sample_weight=sample_weight, batch_size=batch_size)
    if isinstance(x, tf.data.Dataset):
        return tf_data(x, validation, class_weight)
    if kind is not None:
        return py_dataset_of(
            x,
            validation.data,
            class_weight=class_weight,
            shuffle=shuffle,
            validation_batch=validation.batch_size,
            validation_steps=validation.steps,
            steps_per_epoch=steps_per_epoch,
        )
    parts = (readable(x, "x"), readable(y, "y"), readable(sample_weight, "sample_weight"))
    if validation_split and validation.data is None:
        parts, held_back = _split(*parts, validation_split)
        validation = dataclasses.replace(validation, data=held_back)
    if has_sparse(*parts):
        sparse = sparse_dataset(*parts, batch_size=array_batch, shuffle=shuffle)
        validation = dataclasses.replace(validation, data=with_sparse_tensors(validation.data))
        return tf_data(sparse, validation, class_weight)
    return _of_arrays(parts, validation, class_weight, batch_size=array_batch, shuffle=shuffle)


@dataclass(frozen=True)
class Validation:
    """Validation data, or None. `steps` limits its batches. `batch_size` is the batch size of arrays."""

    data: Any
    steps: int | None
    batch_size: int


def _read_validation(x: Any, given: Any, steps: int | None, batch_size: int | None) -> tuple[Any, int | None]:
    """Returns the validation data with readable arrays, and the number of its batches that are still to be selected, or
    None. A `keras.utils.PyDataset` beside data of another kind becomes `InBatches`."""
    if is_generator(given):
        raise ConfigError(
            "validation_data (fit): a generator has other batches in each epoch, and can be read once: pass arrays, a "
            "tf.data.Dataset or a keras.utils.PyDataset"
        )
    given = _as_parts(given)
    kind = kind_with_batches(given)
    if kind is None:
        return readable(given, "validation_data"), steps
    if batch_size is not None:
        raise ConfigError(f"validation_batch_size (fit): a {kind} already has a batch size; remove this argument")
    if is_py_dataset(given) and not (is_py_dataset(x) or is_generator(x)):
        return arrays_of(given, "validation_data", steps), None
    return given, steps


def kind_with_batches(given: Any) -> str | None:
    """Returns the name of the kind of data if it has batches of its own, otherwise None."""
    import tensorflow as tf

    if isinstance(given, tf.data.Dataset):
        return "tf.data.Dataset"
    if is_generator(given):
        return GENERATOR
    return PY_DATASET if is_py_dataset(given) else None


def _of_arrays(
    parts: tuple[Any, Any, Any],
    validation: Validation,
    class_weight: dict[int, float] | None,
    *,
    batch_size: int,
    shuffle: bool,
) -> Any:
    """Returns the dataset for dense arrays (x, y, sample_weight)."""
    import keras

    from parallax_runner.data.from_arrays import arrays_dataset

    x, y, sample_weight = parts
    held_back = validation.data
    if has_sparse(held_back):
        raise ConfigError("validation_data (fit): it has a sparse matrix, but x has none: give both the same kind")
    in_batches = InBatches(None, ())
    if held_back is not None:
        in_batches = as_arrays(held_back, batch_size=validation.batch_size, steps=validation.steps)
    if class_weight is not None:
        sample_weight = _weights_of_arrays(y, sample_weight, class_weight)
    return arrays_dataset(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        shuffle=shuffle,
        validation=in_batches.arrays,
        validation_sizes=in_batches.sizes,
        floatx=keras.config.floatx(),
    )


def _as_parts(validation_data: Any) -> Any:
    """Returns (x, y) or (x, y, sample_weight) as a tuple, also for a list, which Keras accepts. Returns other data
    unchanged."""
    parts = tuple(validation_data) if isinstance(validation_data, list) else validation_data
    has_no_weights = isinstance(parts, tuple) and len(parts) == 3 and parts[2] is None
    return parts[:2] if has_no_weights else parts


def _of_tf_data(
    train: Any,
    validation: Validation,
    class_weight: dict[int, float] | None,
    *,
    steps_per_epoch: int | None,
    is_exact: Callable[[], bool],
    pass_steps: int | None,
) -> Any:
    """Returns the dataset for `train`, a `tf.data.Dataset`. The arguments are those of `dataset_of`."""
    from parallax_runner.graph.tf_data.tf_dataset import TfDataset

    weighted = train if class_weight is None else _weighted(train, class_weight)
    held_back, has_weights, validation_has_weights = None, True, True
    if validation.data is not None:
        held_back = as_dataset(validation.data, batch_size=validation.batch_size, steps=validation.steps)
        weighted, has_weights = with_weights_like(weighted, held_back)
        held_back, validation_has_weights = with_weights_like(held_back, weighted)
    found = TfDataset.of(
        weighted,
        held_back,
        exact=is_exact(),
        is_counted=steps_per_epoch is None,
        pass_steps=pass_steps,
        has_weights=has_weights,
        validation_has_weights=validation_has_weights,
    )
    if found.is_endless and steps_per_epoch is None:
        raise ConfigError("the data never ends").about(
            Setting("steps_per_epoch", "None", where="fit"), remedy="set the number of steps per epoch"
        )
    return found


def _refuse_for_dataset(kind: str, validation_split: float, **contained: Any) -> None:
    """Raises ConfigError for an argument that is only for arrays, or that data of this kind already contains."""
    for name, value in contained.items():
        if value is not None:
            raise ConfigError(f"{name} (fit): a {kind} already contains it; remove {name}")
    if validation_split:
        raise ConfigError(
            "this argument needs arrays; for a tf.data.Dataset, split off validation_data with .take(…) and .skip(…)"
        ).about(Setting.of("validation_split", validation_split, where="fit"))


def _split(x: Any, y: Any, sample_weight: Any, share: float) -> tuple[tuple[Any, Any, Any], Any]:
    """Splits arrays as Keras does: the last rows, a fraction `share` of all rows, are used for validation.

    Raises ConfigError if one of the two parts would be empty.
    """
    import keras
    from keras.src.trainers.data_adapters.array_slicing import train_validation_split

    given = (x, y, sample_weight)
    try:
        split = train_validation_split(keras.tree.map_structure(_splittable, given), validation_split=share)
    except ValueError as error:
        raise ConfigError(str(error)).about(Setting.of("validation_split", share, where="fit")) from error
    train, validation = (keras.tree.map_structure(_strings_of_rows, given, part) for part in split)
    return train, validation if validation[2] is not None else validation[:2]


def _splittable(leaf: Any) -> Any:
    """Returns the numbers of the rows in place of an array of strings, which Keras cannot split."""
    return np.arange(len(leaf)) if _has_strings(leaf) else leaf


def _strings_of_rows(leaf: Any, part: Any) -> Any:
    """Returns a part of `leaf`, given the part of what `_splittable` returned."""
    return leaf[part] if _has_strings(leaf) else part


def _has_strings(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and dtype_name(leaf) == STRING


def _weighted(train: Any, class_weight: dict[int, float]) -> Any:
    """Weights examples by their class as Keras does. Classes that are not in `class_weight` get the weight 1.

    Raises ConfigError if the data is not (x, y).
    """
    import tensorflow as tf

    parts = train.element_spec if isinstance(train.element_spec, tuple) else (train.element_spec,)
    if len(parts) != 2 or not isinstance(parts[1], tf.TensorSpec):
        raise ConfigError("class_weight (fit): the data must be (x, y), where y is a single tensor of class labels")

    def with_weights(x: Any, y: Any) -> tuple[Any, Any, Any]:
        one_hot = y.shape.rank > 1 and y.shape[-1] != 1
        classes = tf.argmax(y, axis=-1) if one_hot else tf.reshape(tf.cast(tf.round(y), tf.int64), [-1])
        weights = tf.ones_like(classes, tf.float32)
        for number, weight in class_weight.items():
            weights = tf.where(classes == number, tf.constant(weight, tf.float32), weights)
        return x, y, weights

    return train.map(with_weights)


def _weights_of_arrays(y: Any, sample_weight: Any, class_weight: dict[int, float]) -> Any:
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    if sample_weight is not None:
        raise ConfigError("class_weight (fit): sample_weight is also set; pass only one of the two")
    return class_weight_to_sample_weights(y, class_weight)
