"""Determines the batch size, the features and the end of a `tf.data.Dataset` from its types and transformations,
without reading it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from parallax_runner.data.dataset import Feature
from parallax_runner.errors import DataError
from parallax_runner.graph.components import count_rows, feature_of

# Transformations that yield the batches of their input unchanged.
PASSING = ("_PrefetchDataset", "_OptionsDataset")
# Transformations that yield some or all batches of their input, unchanged.
KEEPING_BATCHES = (
    *(*PASSING, "_ShuffleDataset", "_RepeatDataset", "_TakeDataset", "_SkipDataset", "_FilterDataset"),
    "CacheDataset",
)
# Transformations from batches to batches. Users often put such transformations after `batch`.
BATCHWISE = (*KEEPING_BATCHES, "_MapDataset", "_ParallelMapDataset", "_ConcatenateDataset")
BATCHING = ("_BatchDataset", "_ParallelBatchDataset")
# Pads the examples of a batch to the longest of them, so parts of a batch must be taken from the whole batch.
PADDING = ("_PaddedBatchDataset",)


def last_batching(dataset: Any, passing: Collection[str], kinds: Collection[str] = BATCHING) -> Any:
    """Returns the `batch` transformation of one of the `kinds` at the end of a pipeline, or None if the pipeline does
    not end with one. Ignores transformations in `passing` that follow `batch`."""
    while type(dataset).__name__ in passing:
        dataset = dataset._input_dataset
    return dataset if type(dataset).__name__ in kinds else None


def yields_full_batches(dataset: Any) -> bool:
    """Returns whether every batch is known to be full, without reading the data.

    A map after `batch` can change the number of examples in a batch.
    """
    batched = last_batching(dataset, KEEPING_BATCHES, (*BATCHING, *PADDING))
    if batched is None:
        return False
    examples = int(batched._input_dataset.cardinality())
    if examples >= 0:
        return examples % int(batched._batch_size) == 0
    return is_endless(batched._input_dataset)


def is_endless(dataset: Any) -> bool:
    """Returns whether a pass never ends. Checks the inputs of filters too, because a filter hides an endless input."""
    through = {"_GroupByWindowDataset", *BATCHING, *PADDING, *BATCHWISE} - {"_TakeDataset"}
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


def stated_size(dataset: Any, batched: Any, static: int | None, what: str) -> int | None:
    """Returns the batch size that a dataset states, or None if only its batches tell their size. `batched` is its last
    `batch` transformation, if it ends with one, and `static` is the size in its types. Raises DataError if the dataset
    has no batches. `what` names the data in the error."""
    if batched is not None:
        return int(batched._batch_size)
    if static is not None:
        return static
    if any(spec.shape.rank == 0 for spec in tf.nest.flatten(dataset.element_spec)):
        raise DataError(f"{what}: its elements are single examples, not batches: add .batch(N)")
    earlier = last_batching(dataset, BATCHWISE, (*BATCHING, *PADDING))
    return None if earlier is None else int(earlier._batch_size)


def size_of_first(batches: Any, flatten: Callable[[Any], dict[str, Any]], what: str) -> int:
    """Returns the number of examples in the first of `batches`. `flatten` returns the features of a batch by name.

    Raises DataError if there is no batch, or its features have different numbers of rows. `what` names the data.
    """
    first = next(iter(batches.take(1)), None)
    if first is None:
        raise DataError(f"{what}: it has no batches")
    sizes = {name: int(count_rows(part)) for name, part in flatten(first).items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{size} for «{name}»" for name, size in sizes.items())
        raise DataError(
            f"{what}: expected batches, whose features have the same number of rows; the first element has {told}: "
            "make .batch(N) the last transformation"
        )
    return next(iter(sizes.values()))


def feature_of_spec(name: str, spec: Any, what: str) -> Feature:
    """Returns the feature that a batch's part with the type `spec` contains. Raises DataError if it cannot be
    distributed."""
    if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec):
        raise DataError(
            f"{what}: «{name}» is {type(spec).__name__}: only dense, ragged and sparse tensors can be distributed"
        )
    if spec.shape.rank is None:
        raise DataError(
            f"{what}: the number of dimensions of «{name}» is unknown: set it in a map with tf.ensure_shape, where "
            "None stands for a size that differs from batch to batch"
        )
    if spec.dtype in (tf.resource, tf.variant):
        raise DataError(
            f"{what}: «{name}» has the type {spec.dtype.name}: convert it to numbers or strings with Dataset.map"
        )
    return feature_of(spec)
