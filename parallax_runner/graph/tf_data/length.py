"""Finds an early transformation of a `tf.data` graph that yields as many elements as the whole pipeline, for fast
counting."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Transformations that do not change the number of elements. A map can change this number only if its function can end
# the data.
KEEPING = ("PrefetchDataset", "OptionsDataset", "ShuffleDatasetV3")
MAPS = ("MapDataset", "ParallelMapDatasetV2")
# Possible names of the attribute that contains the element types. File readers have no such attribute, because they
# always yield strings.
TYPES = ("output_types", "Toutput_types")


def equally_long(graph_def: Any) -> tuple[str, tuple[Any, ...]]:
    """Returns the output of a transformation that yields as many elements as the whole pipeline, and the types of these
    elements.

    Skips maps, shuffles and in-memory caches at the end of the pipeline.
    """
    nodes = {node.name: node for node in graph_def.node}
    output = output_of(graph_def)
    while _keeps_length(nodes[node_of(output)], nodes):
        output = nodes[node_of(output)].input[0]
    types, shapes = element_types(nodes[node_of(output)])
    return output, tuple(
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(one))
        for one, shape in zip(types.list.type, shapes.list.shape, strict=True)
    )


def output_of(graph_def: Any) -> str:
    """Returns the output of a graph that is the dataset."""
    (output,) = (node.input[0] for node in graph_def.node if node.op == "_Retval")
    return str(output)


def node_of(output: str) -> str:
    """Returns the name of the node to which an output belongs."""
    return output.lstrip("^").split(":")[0]


def element_types(node: Any) -> tuple[Any, Any]:
    """Returns the attributes that contain the types and shapes of a dataset's elements."""
    for name in TYPES:
        if name in node.attr:
            return node.attr[name], node.attr["output_shapes"]
    types, shapes = tf.compat.v1.AttrValue(), tf.compat.v1.AttrValue()
    types.list.type.append(tf.string.as_datatype_enum)
    shapes.list.shape.add()
    return types, shapes


def is_in_memory(node: Any, nodes: Any) -> bool:
    """Returns whether a node is an in-memory cache. A cache in a file does not count, because a run with a different
    number of workers can read it."""
    if node.op != "CacheDatasetV2":
        return False
    name = nodes[node_of(node.input[1])]
    return name.op == "Const" and tf.make_ndarray(name.attr["value"].tensor).item() == b""


def _keeps_length(node: Any, nodes: Any) -> bool:
    if node.op in MAPS:
        return bool(node.attr["preserve_cardinality"].b)
    return node.op in KEEPING or is_in_memory(node, nodes)
