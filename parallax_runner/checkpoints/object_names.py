"""The names of variables in a checkpoint that `tf.train.Checkpoint` has written, whose tensors are named after objects.

Such a checkpoint has a tensor `model/_operations/1/bias/.ATTRIBUTES/VARIABLE_VALUE`, and tells that the variable itself
is called `dense/bias`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from parallax_runner.errors import CheckpointError, Setting, reason_in
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


def values_of(prefix: Path, tensors: Mapping[str, str], about: Setting) -> dict[str, np.ndarray]:
    """Returns the values of variables, whose tensors are given by their names. TensorFlow checks the checksum of each
    value. `about` is the setting that names the checkpoint. Raises CheckpointError if a value cannot be read."""
    try:
        with literal(prefix) as path:
            reader = tf.train.load_checkpoint(path)
            return {name: np.asarray(reader.get_tensor(tensor)) for name, tensor in tensors.items()}
    except (tf.errors.OpError, ValueError) as error:
        reason = error.message if isinstance(error, tf.errors.OpError) else str(error)
        raise CheckpointError(f"this checkpoint cannot be read: {reason_in(reason)}").about(about) from error


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
