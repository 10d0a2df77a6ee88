"""Finds the step of a `tf.data` graph that has as many elements as the whole pipeline and is the fastest to count."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Steps that keep the number of elements. A map keeps it if its function cannot end the data.
KEEPING = ("PrefetchDataset", "OptionsDataset", "ShuffleDatasetV3")
MAPS = ("MapDataset", "ParallelMapDatasetV2")
# The names of the attribute with the types of a data set's elements. Readers of files have neither: they yield strings.
TYPES = ("output_types", "Toutput_types")


def equally_long(graph_def: Any) -> tuple[str, tuple[Any, ...]]:
    """Returns an output of the graph whose data set has as many elements as the result, and the types of its elements.

    Maps, shuffles and caches in memory at the end of the pipeline are left out.
    """
    nodes = {node.name: node for node in graph_def.node}
    (output,) = (node.input[0] for node in graph_def.node if node.op == "_Retval")
    while _keeps_length(nodes[node_of(output)], nodes):
        output = nodes[node_of(output)].input[0]
    types, shapes = element_types(nodes[node_of(output)])
    return output, tuple(
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(one))
        for one, shape in zip(types.list.type, shapes.list.shape, strict=True)
    )


def node_of(output: str) -> str:
    """Returns the name of the node to which an output belongs."""
    return output.lstrip("^").split(":")[0]


def element_types(node: Any) -> tuple[Any, Any]:
    """Returns the attributes with the types and the shapes of the elements that a data set yields."""
    for name in TYPES:
        if name in node.attr:
            return node.attr[name], node.attr["output_shapes"]
    types, shapes = tf.compat.v1.AttrValue(), tf.compat.v1.AttrValue()
    types.list.type.append(tf.string.as_datatype_enum)
    shapes.list.shape.add()
    return types, shapes


def is_in_memory(node: Any, nodes: Any) -> bool:
    """Returns whether a node is a cache in memory. A cache in a file can be read by another run, with another number of
    workers."""
    if node.op != "CacheDatasetV2":
        return False
    name = nodes[node_of(node.input[1])]
    return name.op == "Const" and tf.make_ndarray(name.attr["value"].tensor).item() == b""


def _keeps_length(node: Any, nodes: Any) -> bool:
    if node.op in MAPS:
        return bool(node.attr["preserve_cardinality"].b)
    return node.op in KEEPING or is_in_memory(node, nodes)
