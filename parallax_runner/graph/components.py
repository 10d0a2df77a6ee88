"""The component tensors of ragged and sparse features, and the rows of batches of any kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from parallax_runner.data.dataset import Feature

NOT_IN_OP_NAMES = re.compile(r"[^A-Za-z0-9_.\\/-]")
# Maps each feature's name to the tf.TypeSpec of its batches.
Specs = Mapping[str, Any]
# Like `Specs`, but a dense feature can also be given as (shape, dtype).
Given = Mapping[str, Any]


def placeholder_name(component: str) -> str:
    """Returns a valid op name for a feature's placeholder. A feature, such as a column of a file, can have any name."""
    return f"features/{NOT_IN_OP_NAMES.sub('_', component)}"


def type_spec(feature: Feature, batch_size: int | None) -> Any:
    """Returns the tf.TypeSpec of a feature's batches."""
    shape = (batch_size, *feature.shape)
    if feature.kind == "ragged":
        return tf.RaggedTensorSpec(shape, feature.dtype, feature.ragged_rank, tf.int64)
    return (
        tf.SparseTensorSpec(shape, feature.dtype) if feature.kind == "sparse" else tf.TensorSpec(shape, feature.dtype)
    )


def specs_of(features: Mapping[str, Feature], batch_size: int | None) -> dict[str, Any]:
    """Returns the type of each feature for batches of this size, or of any size if it is None."""
    return {name: type_spec(feature, batch_size) for name, feature in features.items()}


def type_specs(features: Given) -> Specs:
    """Returns the tf.TypeSpec of each feature."""
    return {name: tf.TensorSpec(*one) if isinstance(one, tuple) else one for name, one in features.items()}


def feature_of(spec: Any) -> Feature:
    """Returns the feature whose batches have this type."""
    shape, dtype = tuple(spec.shape[1:]), spec.dtype.name
    if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank:
        return Feature(shape, dtype, "ragged", spec.ragged_rank)
    return Feature(shape, dtype, "sparse" if isinstance(spec, tf.SparseTensorSpec) else "dense")


def of_any_size(spec: Any) -> Any:
    """Returns the same type with an unknown batch size."""
    return type_spec(feature_of(spec), None)


def components(name: str, batch: Any) -> dict[str, Any]:
    """Returns the component tensors of a batch under the names that `Feature` gives them.

    If `batch` is a type, returns the types of the components.
    """
    spec = batch if isinstance(batch, tf.TypeSpec) else tf.type_spec_from_value(batch)
    inner = feature_of(spec).components
    if not inner:
        return {name: batch}
    flat = tf.nest.flatten(batch, expand_composites=True)
    return {f"{name}/{component}": one for component, one in zip(inner, flat, strict=True)}


def with_long_splits(batch: Any) -> Any:
    """Converts the row splits of a ragged batch to int64, as `Feature` requires. Returns other batches unchanged."""
    return batch.with_row_splits_dtype(tf.int64) if isinstance(batch, tf.RaggedTensor) else batch


def count_rows(batch: Any) -> Any:
    """Returns the number of examples in a batch as an int64 scalar."""
    if isinstance(batch, tf.SparseTensor):
        return batch.dense_shape[0]
    return tf.cast(batch.nrows(), tf.int64) if isinstance(batch, tf.RaggedTensor) else tf.shape(batch, tf.int64)[0]


def rows(batch: Any, start: int = 0, stop: int | None = None, step: int = 1) -> Any:
    """Returns `batch[start:stop:step]` for any kind of batch, including sparse batches. Bounds must not be negative."""
    if not isinstance(batch, tf.SparseTensor):
        return batch[start:stop:step]
    end = count_rows(batch) if stop is None else tf.minimum(count_rows(batch), stop)
    number = batch.indices[:, 0]
    kept = tf.sparse.retain(batch, (number >= start) & (number < end) & ((number - start) % step == 0))
    indices = tf.concat([(kept.indices[:, :1] - start) // step, kept.indices[:, 1:]], axis=1)
    size = tf.maximum(end - start + step - 1, 0) // step
    return tf.SparseTensor(indices, kept.values, tf.concat([[size], batch.dense_shape[1:]], axis=0))
