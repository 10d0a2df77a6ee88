"""Reads the first examples of a `tf.data` pipeline, regardless of its shuffles, to identify the data."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from parallax_runner.data.digest import DIGEST_CHARS, bytes_of
from parallax_runner.graph.tf_data.length import node_of

# Transformations that are left out. Without a shuffle, its seed does not matter and its buffer is not filled. A cache
# that is only partly read keeps a file that blocks other readers.
LEFT_OUT = {
    *("ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3"),
    *("ShuffleAndRepeatDataset", "ShuffleAndRepeatDatasetV2"),
    *("CacheDataset", "CacheDatasetV2", "PrefetchDataset"),
}


def without_shuffles(graph_def: Any) -> Any:
    """Returns a copy of a dataset's graph without the transformations in `LEFT_OUT`. Those in functions, as in
    `flat_map`, remain."""
    changed = copy.deepcopy(graph_def)
    nodes = {node.name: node for node in changed.node}
    for node in changed.node:
        node.input[:] = [_source(name, nodes) for name in node.input]
    return changed


def _source(name: str, nodes: dict[str, Any]) -> str:
    node = nodes.get(node_of(name))
    while node is not None and node.op in LEFT_OUT and not name.startswith("^"):
        name = node.input[0]
        node = nodes.get(node_of(name))
    return name


def digest_of_elements(elements: Any) -> str:
    """Returns a digest of the elements of a dataset, each of which is one example."""
    digest = hashlib.sha256()
    for element in elements:
        for tensor in _tensors(element):
            array = tensor.numpy()
            digest.update(f"{tensor.dtype.name} {tensor.shape}\n".encode())
            digest.update(array if isinstance(array, bytes) else bytes_of(array))
    return digest.hexdigest()[:DIGEST_CHARS]


def _tensors(element: Any) -> Iterator[Any]:
    for part in tf.nest.flatten(element):
        if isinstance(part, tf.SparseTensor):  # after `unbatch`, its shape depends on the rest of its batch
            yield part.indices
            yield part.values
        else:
            yield from tf.nest.flatten(part, expand_composites=True)
