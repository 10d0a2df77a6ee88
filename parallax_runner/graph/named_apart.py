"""A second copy of a graph beside the first, in one `tf.Graph`: whatever TensorFlow matches by name is named apart."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

# The resource manager matches by the first (variables, queues, tables, iterators), the executor loops by the second.
NAMES_OF_STATE = ("shared_name", "frame_name")


def named_apart(graph_def: tf.GraphDef, prefix: str) -> tf.GraphDef:
    """A copy of `graph_def` whose functions, resources and loops have `prefix`; ops are named at import."""
    apart = tf.GraphDef()
    apart.CopyFrom(graph_def)
    functions = {
        function.signature.name: _function_name(prefix, function.signature.name) for function in apart.library.function
    }
    for function in apart.library.function:
        function.signature.name = functions[function.signature.name]
        for node in function.node_def:
            _name_node_apart(node, prefix, functions)
    for gradient in apart.library.gradient:
        gradient.function_name = functions[gradient.function_name]
        gradient.gradient_func = functions.get(gradient.gradient_func, gradient.gradient_func)
    for node in apart.node:
        _name_node_apart(node, prefix, functions)
    return apart


def _function_name(prefix: str, name: str) -> str:
    # Names with two underscores in front are TensorFlow's own to inline or not.
    return f"{name}_{prefix.rstrip('/')}"


def _name_node_apart(node: tf.NodeDef, prefix: str, functions: dict[str, str]) -> None:
    node.op = functions.get(node.op, node.op)
    if node.op == "VarHandleOp" and not node.attr["shared_name"].s:
        # An unnamed variable would be known by its op's name, which has the prefix anyway.
        node.attr["shared_name"].s = node.name.encode()
    for attr in NAMES_OF_STATE:
        if attr in node.attr and node.attr[attr].s:
            node.attr[attr].s = prefix.encode() + node.attr[attr].s
    for value in node.attr.values():
        for called in [value.func] if value.HasField("func") else value.list.func:
            called.name = functions.get(called.name, called.name)
