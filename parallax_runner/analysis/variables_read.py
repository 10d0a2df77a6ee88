"""Finds the variables from which a graph computes tensors."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph.edit import ancestors
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def variables_read(single: SingleDeviceGraph, tensors: Iterable[str]) -> list[str]:
    """Returns the full names of the saved variables on which the tensors depend, in creation order."""
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    behind = {op.name for op in ancestors(graph.get_tensor_by_name(name).op for name in tensors)}
    names = [one.full_name for one in single.variables if one.saved and one.name in behind]
    return list(dict.fromkeys(names))  # the pieces of a split variable have one name
