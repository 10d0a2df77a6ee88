"""Checks whether a `tf.data.Dataset` yields its examples in the same order each time and in every process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from parallax_runner.graph.tf_data.fresh_copy import graph_of

PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# Random datasets, and the positions of the inputs that are seeds.
DRAWING = {
    "ShuffleDataset": (2, 4),
    "ShuffleDatasetV2": (),
    "ShuffleDatasetV3": (2, 4),
    "ShuffleAndRepeatDataset": (2, 4),
    "ShuffleAndRepeatDatasetV2": (2, 4),
    "RandomDataset": (0, 2),
    "RandomDatasetV2": (0, 2),
}
# Prefixes of ops that change a variable. A tf.random.Generator and Keras' random layers use such ops.
CHANGING = ("Assign", "ResourceScatter", "RngReadAndSkip", "RngSkip")


def why_not_repeatable(dataset: Any) -> str | None:
    """Returns the reason why the examples or their order cannot be repeated, or None if they can be repeated."""
    scopes = _scopes(dataset)
    if any(node.op == "GeneratorDataset" for nodes in scopes for node in nodes):
        return why_without_order(dataset) or "it comes from a Python generator"
    return why_without_order(dataset) or next((reason for nodes in scopes for reason in _reasons(nodes)), None)


def why_without_order(dataset: Any) -> str | None:
    """Returns the reason why TensorFlow itself can yield the examples in a different order each time, or None."""
    if dataset.options().deterministic is False:
        return "its options have deterministic=False"
    return next((reason for nodes in _scopes(dataset) for reason in _reasons_of_order(nodes)), None)


def draws_order(dataset: Any) -> bool:
    """Returns whether random numbers determine the order of the examples, with or without a seed."""
    return any(node.op in DRAWING for nodes in _scopes(dataset) for node in nodes)


def seeds_of(dataset: Any) -> str:
    """Returns the seeds of the dataset's shuffles and random choices as text."""
    scopes = ((nodes, {node.name: node for node in nodes}) for nodes in _scopes(dataset))
    drawing = [(node, names) for nodes, names in scopes for node in nodes if node.op in DRAWING]
    return "; ".join(sorted(f"{node.op} {list(_seeds(node, names))}" for node, names in drawing))


def _scopes(dataset: Any) -> list[Any]:
    """Returns a list with the nodes of the dataset's graph, and the nodes of each function in the graph."""
    graph_def = graph_of(dataset)
    return [graph_def.node, *(function.node_def for function in graph_def.library.function)]


def _reasons_of_order(nodes: Iterable[Any]) -> Iterator[str]:
    names = {node.name: node for node in nodes}
    for node in nodes:
        if node.op in DRAWING and not any(_seeds(node, names)):
            yield "a shuffle has no seed" if "Shuffle" in node.op else "a random choice of datasets has no seed"
        if any(
            key in node.attr and node.attr[key].s == b"false" for key in ("deterministic", "experimental_deterministic")
        ):
            yield "a map has deterministic=False"


def _reasons(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        if node.op in PYTHON:
            yield "it calls a Python function (py_function, numpy_function)"
        if "seed2" in node.attr and "Dataset" not in node.op:
            yield f"a map draws random numbers ({node.op})"
        if node.op.startswith(CHANGING):
            yield f"a map changes a variable ({node.op}), as random layers do with their seeds"


def _seeds(node: Any, names: dict[str, Any]) -> Iterator[int]:
    """Yields the constant seeds among the inputs of a random dataset."""
    for name in node.input[slice(*DRAWING[node.op])] if DRAWING[node.op] else ():
        source = names.get(name.split(":")[0])
        if source is not None and source.op == "Const":
            yield int(np.asarray(tf.make_ndarray(source.attr["value"].tensor)))
