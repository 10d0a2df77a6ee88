"""Finds the initializers of input pipelines in the graph, because a model's function cannot run them itself."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

# Ops that have no value yet while variables are initialized.
NOT_YET = frozenset({"Placeholder", "ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
LOOKUPS = frozenset({"LookupTableFind", "LookupTableFindV2"})


def input_initializers(meta_graph: tf.MetaGraphDef) -> tuple[list[str], list[str]]:
    """Returns two lists with the names of ops that fill lookup tables or initialize iterators.

    The ops in the first list run first. The ops in the second list look up values in a table and run afterwards.

    An iterator is omitted if it has several initializers, or if its initializer must be fed or reads variables. In
    these cases, the user's code must initialize the iterator.
    """
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    tables = meta_graph.collection_def[tf.GraphKeys.TABLE_INITIALIZERS].node_list.value
    names = list(dict.fromkeys([*tables, *_iterator_initializers(nodes)]))
    late = [name for name in names if LOOKUPS & _kinds_needed(nodes, name)]
    return [name for name in names if name not in late], late


def _iterator_initializers(nodes: dict[str, tf.NodeDef]) -> list[str]:
    makers: dict[str, list[str]] = {}
    for node in nodes.values():
        if node.op == "MakeIterator":
            makers.setdefault(node.input[1], []).append(node.name)
    only = [names[0] for names in makers.values() if len(names) == 1]
    return [name for name in only if not NOT_YET & _kinds_needed(nodes, name)]


def _kinds_needed(nodes: dict[str, tf.NodeDef], start: str) -> set[str]:
    """Returns the types of an op and of all ops that it depends on."""
    found: set[str] = set()
    stack = [start]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(tensor.removeprefix("^").split(":")[0] for tensor in nodes[name].input)
    return {nodes[name].op for name in found}
