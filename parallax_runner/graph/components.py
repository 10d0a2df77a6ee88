"""Ragged and sparse features as the tensors that they are made of; and rows of a batch, of whatever kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from parallax_runner.data.dataset import Feature

# By feature, the type of its batches, as TensorFlow calls it.
Specs = Mapping[str, Any]
# The same, or shape and dtype where it is dense.
Given = Mapping[str, Any]


def type_spec(feature: Feature, batch_size: int | None) -> Any:
    """The type of a batch of a feature."""
    shape = (batch_size, *feature.shape)
    if feature.kind == "ragged":
        return tf.RaggedTensorSpec(shape, feature.dtype, feature.ragged_rank, tf.int64)
    return (
        tf.SparseTensorSpec(shape, feature.dtype) if feature.kind == "sparse" else tf.TensorSpec(shape, feature.dtype)
    )


def type_specs(features: Given) -> Specs:
    """The types of features."""
    return {name: tf.TensorSpec(*one) if isinstance(one, tuple) else one for name, one in features.items()}


def feature_of(spec: Any) -> Feature:
    """The feature that batches of this type have."""
    shape, dtype = tuple(spec.shape[1:]), spec.dtype.name
    if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank:
        return Feature(shape, dtype, "ragged", spec.ragged_rank)
    return Feature(shape, dtype, "sparse" if isinstance(spec, tf.SparseTensorSpec) else "dense")


def of_any_size(spec: Any) -> Any:
    """The type of batches of other sizes."""
    return type_spec(feature_of(spec), None)


def components(name: str, batch: Any) -> dict[str, Any]:
    """The tensors of a batch of a feature, or the types of these where `batch` is a type, as `Feature` names them."""
    spec = batch if isinstance(batch, tf.TypeSpec) else tf.type_spec_from_value(batch)
    inner = feature_of(spec).components
    if not inner:
        return {name: batch}
    flat = tf.nest.flatten(batch, expand_composites=True)
    return {f"{name}/{component}": one for component, one in zip(inner, flat, strict=True)}


def with_long_splits(batch: Any) -> Any:
    """A ragged batch with splits of int64, as `Feature` says; others as they are."""
    return batch.with_row_splits_dtype(tf.int64) if isinstance(batch, tf.RaggedTensor) else batch


def count_rows(batch: Any) -> Any:
    """The examples of a batch, int64 scalar."""
    if isinstance(batch, tf.SparseTensor):
        return batch.dense_shape[0]
    return tf.cast(batch.nrows(), tf.int64) if isinstance(batch, tf.RaggedTensor) else tf.shape(batch, tf.int64)[0]


def rows(batch: Any, start: int = 0, stop: int | None = None, step: int = 1) -> Any:
    """`batch[start:stop:step]`, of whole numbers."""
    if not isinstance(batch, tf.SparseTensor):
        return batch[start:stop:step]
    end = count_rows(batch) if stop is None else tf.minimum(count_rows(batch), stop)
    number = batch.indices[:, 0]
    kept = tf.sparse.retain(batch, (number >= start) & (number < end) & ((number - start) % step == 0))
    indices = tf.concat([(kept.indices[:, :1] - start) // step, kept.indices[:, 1:]], axis=1)
    size = tf.maximum(end - start + step - 1, 0) // step
    return tf.SparseTensor(indices, kept.values, tf.concat([[size], batch.dense_shape[1:]], axis=0))
