"""Finds the part of a `tf.data` graph that a tensor depends on."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.tf_data.length import node_of


def upstream_of(graph_def: Any, output: str) -> Any:
    """Returns a GraphDef with the nodes that `output` depends on, including its own node, and with the functions that
    these nodes call. The order of the nodes is that of `graph_def`."""
    nodes = {node.name: node for node in graph_def.node}
    found, waiting = set[str](), [node_of(output)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += map(node_of, nodes[name].input)
    part = tf.compat.v1.GraphDef()
    part.node.extend(node for node in graph_def.node if node.name in found)
    functions = {function.signature.name: function for function in graph_def.library.function}
    part.library.function.extend(functions[name] for name in _called_by(part.node, functions))
    return part


def without_process_names(part: Any) -> Any:
    """Returns a copy of a graph that `upstream_of` has returned, without the numbers that a process counts up in the
    names of functions and datasets."""
    changed = copy.deepcopy(part)
    numbers = {one.signature.name: str(number) for number, one in enumerate(part.library.function)}
    for function in changed.library.function:
        function.signature.name = numbers[function.signature.name]
    for node in all_nodes(changed):
        node.attr.pop("metadata", None)
        node.ClearField("experimental_debug_info")
        for function in called(node):
            function.name = numbers.get(function.name, function.name)
    return changed


def called(node: Any) -> Iterator[Any]:
    """Yields the functions (NameAttrList) in a node's attributes, in the order of the attributes' names."""
    for _, attribute in sorted(node.attr.items()):
        single = [attribute.func] if attribute.HasField("func") else []
        yield from (*single, *attribute.list.func)


def _called_by(nodes: Iterable[Any], functions: Mapping[str, Any]) -> list[str]:
    """Returns the names of the functions that the nodes call, directly or through other functions, in the order in
    which they are found."""
    found, waiting = dict[str, None](), list(nodes)
    while waiting:
        for function in called(waiting.pop()):
            if function.name in functions and function.name not in found:
                found[function.name] = None
                waiting += functions[function.name].node_def
    return list(found)
