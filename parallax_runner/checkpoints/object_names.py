"""The names of variables in a checkpoint that `tf.train.Checkpoint` has written, whose tensors are named after objects.

Such a checkpoint has a tensor `model/_operations/1/bias/.ATTRIBUTES/VARIABLE_VALUE`, and tells that the variable itself
is called `dense/bias`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from parallax_runner.files.literal_path import literal

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def tensors_by_name(prefix: Path, tensors: Collection[str]) -> dict[str, str]:
    """Returns the tensors of a checkpoint by the names of their variables. In a checkpoint of a `Saver`, these are the
    names of the tensors. A variable whose name is unknown, or that of another variable too, has the name of its object.

    Raises tf.errors.OpError if the checkpoint cannot be read.
    """
    names = _names_of_objects(prefix)
    counts = Counter(names.values())
    return {_name_of(tensor, names, counts): tensor for tensor in tensors}


def _name_of(tensor: str, names: dict[str, str], counts: Counter[str]) -> str:
    name = names.get(tensor, "")
    return name if name and counts[name] == 1 else tensor.removesuffix(_VALUE)


def _names_of_objects(prefix: Path) -> dict[str, str]:
    """Returns the names of variables by their tensors, as the checkpoint tells them."""
    with literal(prefix) as path:
        reader = tf.train.load_checkpoint(path)
        if not reader.has_tensor(OBJECT_GRAPH):
            return {}
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(OBJECT_GRAPH))
    attributes = [one for node in graph.nodes for one in node.attributes]
    return {one.checkpoint_key: one.full_name for one in attributes}
