"""Starts the input pipelines that are part of the graph: a model's function cannot run their initializers itself."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

# What an initializer may depend on that is not there yet when variables are initialized.
NOT_YET = frozenset(
    {"Placeholder", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "LookupTableFind", "LookupTableFindV2"}
)


def iterator_initializers(graph_def: tf.GraphDef) -> list[str]:
    """Names of the ops that initialize an iterator; none for one that has several such ops, or whose op needs to be
    fed, or needs variables or tables: whoever made it runs one."""
    nodes = {node.name: node for node in graph_def.node}
    makers: dict[str, list[str]] = {}
    for node in graph_def.node:
        if node.op == "MakeIterator":
            makers.setdefault(node.input[1], []).append(node.name)
    only = [names[0] for names in makers.values() if len(names) == 1]
    return [name for name in only if not NOT_YET & _kinds_needed(nodes, name)]


def _kinds_needed(nodes: dict[str, tf.NodeDef], start: str) -> set[str]:
    """The ops, by type, that an op needs."""
    found: set[str] = set()
    stack = [start]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(tensor.removeprefix("^").split(":")[0] for tensor in nodes[name].input)
    return {nodes[name].op for name in found}
