"""Determines the batch size, the features and the end of a `tf.data.Dataset` from its types and transformations,
without reading it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from parallax_runner.data.dataset import Feature
from parallax_runner.errors import DataError
from parallax_runner.graph.components import feature_of

# Transformations that yield the batches of their input unchanged.
PASSING = ("_PrefetchDataset", "_OptionsDataset")
# Transformations from batches to batches. Users often put such transformations after `batch`.
BATCHWISE = (
    *("_MapDataset", "_ParallelMapDataset", "_ShuffleDataset", "_RepeatDataset", "_TakeDataset", "_SkipDataset"),
    "CacheDataset",
)
BATCHING = ("_BatchDataset", "_ParallelBatchDataset")


def last_batching(dataset: Any, passing: Collection[str]) -> Any:
    """Returns the `batch` transformation at the end of a pipeline, or None if the pipeline does not end with one.
    Ignores transformations in `passing` that follow `batch`."""
    while type(dataset).__name__ in passing:
        dataset = dataset._input_dataset
    return dataset if type(dataset).__name__ in BATCHING else None


def is_endless(dataset: Any) -> bool:
    """Returns whether a pass never ends. Checks the inputs of filters too, because a filter hides an endless input."""
    through = {"_FilterDataset", *PASSING, *BATCHING, *BATCHWISE} - {"_TakeDataset"}
    while int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY and type(dataset).__name__ in through:
        dataset = dataset._input_dataset
    return bool(int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY)


def static_size(specs: dict[str, Any]) -> int | None:
    """Returns the batch size that the types of all features specify, or None if they do not agree on one.

    A map over batches often loses the size of ragged and sparse features.
    """
    sizes = set()
    for spec in specs.values():
        size = spec.shape[0] if spec.shape.rank else None
        if size is not None or isinstance(spec, tf.TensorSpec):
            sizes.add(size)
    return sizes.pop() if len(sizes) == 1 else None


def batch_size_of(dataset: Any, batched: Any, static: int | None, what: str) -> int:
    """Returns the batch size of a dataset. `batched` is its last `batch` transformation, if it ends with one, and
    `static` is the size in its types. Raises DataError if the size is unknown. `what` names the data in the error."""
    if batched is not None:
        return int(batched._batch_size)
    if static is not None:
        return static
    earlier = last_batching(dataset, (*PASSING, *BATCHWISE))
    if earlier is None or any(spec.shape.rank == 0 for spec in tf.nest.flatten(dataset.element_spec)):
        raise DataError(
            f"{what}: the batch size is unknown: make .batch(N) the last transformation, or set "
            "drop_remainder=True in it"
        )
    return int(earlier._batch_size)


def feature_of_spec(name: str, spec: Any, what: str) -> Feature:
    """Returns the feature that a batch's part with the type `spec` contains. Raises DataError if it cannot be
    distributed."""
    if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec):
        raise DataError(
            f"{what}: «{name}» is {type(spec).__name__}: only dense, ragged and sparse tensors can be distributed"
        )
    if spec.shape.rank is None or (isinstance(spec, tf.TensorSpec) and None in spec.shape[1:]):
        raise DataError(
            f"{what}: the shape of «{name}» is {spec.shape}: all dimensions except the first must be known; set them "
            "in a map with tf.ensure_shape"
        )
    if spec.dtype in (tf.string, tf.resource, tf.variant):
        raise DataError(f"{what}: «{name}» has the type {spec.dtype.name}: convert it to numbers with Dataset.map")
    return feature_of(spec)
