"""Makes a captured graph compute its products and convolutions in 16 bits. Variables, gradients and all other ops keep
their dtypes, so every rank casts the same values as one device does (docs/design/0105)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_registry

from parallax_runner.graph.fingerprint import fingerprint_of
from parallax_runner.graph.seeds import called_by
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

# The products and convolutions that have an attribute T for their dtype, and one result.
PRODUCTS = frozenset({
    "BatchMatMul",
    "BatchMatMulV2",
    "Conv2D",
    "Conv2DBackpropFilter",
    "Conv2DBackpropInput",
    "Conv3D",
    "Conv3DBackpropFilterV2",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput",
    "Einsum",
    "MatMul",
})  # fmt: skip


def with_short_products(
    single: SingleDeviceGraph, short: tf.DType = tf.bfloat16, *, full: tf.DType = tf.float32
) -> SingleDeviceGraph:
    """Returns the graph in which the products and convolutions of dtype `full` cast their inputs to `short`, and their
    result back to `full`.

    The update and the initial values are not changed.
    """
    meta_graph = type(single.meta_graph)()
    meta_graph.CopyFrom(single.meta_graph)
    graph_def = meta_graph.graph_def
    chosen = _computed(graph_def, _results(single))
    for function in graph_def.library.function:
        if function.signature.name in called_by(chosen, graph_def):
            _shorten_function(function, short, full)
    for node in chosen:
        if _is_product(node, full):
            graph_def.node.extend(_shortened(node, short, full, inside=False))
    return dataclasses.replace(single, meta_graph=meta_graph, fingerprint=fingerprint_of(graph_def))


def _results(single: SingleDeviceGraph) -> list[str]:
    """Returns the names of the tensors that a step, a validation and a served model compute before the update."""
    gradients = [name for one in single.gradients for name in (one.values, one.indices) if name]
    computed = [single.loss, *single.losses, *single.fetched_in_training]
    return [*gradients, *computed, *single.fetched_in_validation, *single.outputs.values()]


def _computed(graph_def: tf.GraphDef, results: Iterable[str]) -> list[tf.NodeDef]:
    """Returns the nodes from which the results are computed, in the order of the graph."""
    inputs = {node.name: node.input for node in graph_def.node}
    found: set[str] = set()
    stack = [name.partition(":")[0] for name in results]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += [one.partition(":")[0] for one in inputs[name] if not one.startswith("^")]
    return [node for node in graph_def.node if node.name in found]


def _is_product(node: tf.NodeDef, full: tf.DType) -> bool:
    return node.op in PRODUCTS and node.attr["T"].type == full.as_datatype_enum


def _shorten_function(function: Any, short: tf.DType, full: tf.DType) -> None:
    """Changes the products in a function, in which an op is named together with the name of its result."""
    products = [node for node in function.node_def if _is_product(node, full)]
    renamed = {f"{node.name}:{_result_of(node.op)}:0": f"{node.name}:{_result_of('Cast')}:0" for node in products}
    for node in function.node_def:
        node.input[:] = [renamed.get(one, one) for one in node.input]
    for name, returned in dict(function.ret).items():  # which must not change while it is read
        function.ret[name] = renamed.get(returned, returned)
    for node in products:
        function.node_def.extend(_shortened(node, short, full, inside=True))


def _result_of(op_type: str) -> str:
    name: str = op_def_registry.get(op_type).output_arg[0].name
    return name


def _shortened(node: tf.NodeDef, short: tf.DType, full: tf.DType, *, inside: bool) -> list[tf.NodeDef]:
    """Turns a product into the cast of its result, under the same name, and returns the nodes that compute it:
    the product in 16 bits, and the casts of its inputs. `inside` says that it is in a function."""
    product = tf.NodeDef()
    product.CopyFrom(node)
    product.name = f"{node.name}/short"
    product.attr["T"].type = short.as_datatype_enum
    product.attr.pop("_output_shapes", None)
    casts = []
    for place in _places(node):
        cast = _cast(f"{node.name}/short_{place}", node.input[place], full, short, node.device)
        product.input[place] = f"{cast.name}:{_result_of('Cast')}:0" if inside else cast.name
        casts.append(cast)
    result = f"{product.name}:{_result_of(node.op)}:0" if inside else product.name
    node.CopyFrom(_cast(node.name, result, short, full, node.device))
    return [*casts, product]


def _places(node: tf.NodeDef) -> list[int]:
    """Returns the numbers of the inputs of dtype T. The others are shapes."""
    arguments = op_def_registry.get(node.op).input_arg
    if arguments[0].number_attr:  # a list of any length, the only argument
        return list(range(node.attr[arguments[0].number_attr].i))
    return [place for place, argument in enumerate(arguments) if argument.type_attr == "T"]


def _cast(name: str, given: str, source: tf.DType, target: tf.DType, device: str) -> tf.NodeDef:
    cast = tf.NodeDef(name=name, op="Cast", input=[given], device=device)
    cast.attr["SrcT"].type = source.as_datatype_enum
    cast.attr["DstT"].type = target.as_datatype_enum
    cast.attr["Truncate"].b = False
    return cast
