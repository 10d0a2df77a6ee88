"""Whether a `tf.data.Dataset` gives its examples in the same order whenever, and wherever, it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
SHUFFLES = {"ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3", "ShuffleAndRepeatDatasetV2", "RandomDatasetV2"}


def why_not_repeatable(dataset: Any) -> str | None:
    """The reason why it does not, None if it does."""
    if dataset.options().deterministic is False:
        return "its options have deterministic=False"
    graph_def = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    names = {node.name: node for node in graph_def.node}
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    if any(node.op == "GeneratorDataset" for node in nodes):
        return "it comes from a Python generator"
    if any(node.op in PYTHON for node in nodes):
        return "it calls a Python function (py_function, numpy_function)"
    for node in nodes:
        if node.op in SHUFFLES and node.name in names and not any(_constants(node, names)):
            return "a shuffle has no seed"
        if "deterministic" in node.attr and node.attr["deterministic"].s == b"false":
            return "a map has deterministic=False"
        if "seed2" in node.attr and "Dataset" not in node.op:
            return f"a map draws random numbers ({node.op})"
    return None


def _constants(node: Any, names: dict[str, Any]) -> Iterator[int]:
    """The seeds among the inputs of a shuffle: those after the data and the size of its buffer."""
    for name in node.input[2:4] if "Shuffle" in node.op else node.input[:2]:
        source = names.get(name.split(":")[0])
        if source is not None and source.op == "Const":
            yield int(np.asarray(tf.make_ndarray(source.attr["value"].tensor)))
