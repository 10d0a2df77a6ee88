"""Renames everything that TensorFlow matches by name. One `tf.Graph` can then contain two copies of a graph."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

# The resource manager finds variables, queues, tables and iterators by `shared_name`. The executor finds loops by
# `frame_name`.
NAMES_OF_STATE = ("shared_name", "frame_name")
COLOCATED_WITH = b"loc:@"


def named_apart(graph_def: tf.GraphDef, prefix: str) -> tf.GraphDef:
    """Returns a copy of `graph_def` with `prefix` in the names of functions, resources and loops.

    The prefix is not added to the names of ops, because the import renames ops.
    """
    apart = tf.GraphDef()
    apart.CopyFrom(graph_def)
    functions = {
        function.signature.name: _function_name(prefix, function.signature.name) for function in apart.library.function
    }
    outside = {node.name for node in apart.node}
    for function in apart.library.function:
        function.signature.name = functions[function.signature.name]
        inside = {node.name for node in function.node_def}
        for node in function.node_def:
            _name_node_apart(node, prefix, functions)
            _colocate_apart(node, prefix, outside - inside)
    for gradient in apart.library.gradient:
        gradient.function_name = functions[gradient.function_name]
        gradient.gradient_func = functions.get(gradient.gradient_func, gradient.gradient_func)
    for node in apart.node:
        _name_node_apart(node, prefix, functions)
    return apart


def _function_name(prefix: str, name: str) -> str:
    # The prefix is appended to the name, because TensorFlow itself decides whether to inline a function whose name
    # starts with two underscores.
    return f"{name}_{prefix.rstrip('/')}"


def _colocate_apart(node: tf.NodeDef, prefix: str, outside: set[str]) -> None:
    """Adds the prefix to the names of graph ops that an op inside a function is colocated with.

    For example, a loop's gradients are colocated with the loop. The import renames colocations only for ops
    outside functions.
    """
    if "_class" not in node.attr:
        return
    places = node.attr["_class"].list.s
    for number, place in enumerate(places):
        name = place.removeprefix(COLOCATED_WITH).decode()
        if place.startswith(COLOCATED_WITH) and name in outside:
            places[number] = COLOCATED_WITH + (prefix + name).encode()


def _name_node_apart(node: tf.NodeDef, prefix: str, functions: dict[str, str]) -> None:
    node.op = functions.get(node.op, node.op)
    if node.op == "VarHandleOp" and not node.attr["shared_name"].s:
        # Without a shared name, a variable is identified by its op's name.
        node.attr["shared_name"].s = node.name.encode()
    for attr in NAMES_OF_STATE:
        if attr in node.attr and node.attr[attr].s:
            node.attr[attr].s = prefix.encode() + node.attr[attr].s
    for value in node.attr.values():
        for called in [value.func] if value.HasField("func") else value.list.func:
            called.name = functions.get(called.name, called.name)
