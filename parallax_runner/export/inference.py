"""Extracts the part of a training graph that computes a model's outputs, without gradients, slots or updates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.errors import ExportError
from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.single_device_graph import SingleDeviceGraph, Variable
from parallax_runner.graph.tables import FILLS

WRITES = re.compile(r"Assign\w*VariableOp|Resource(Scatter|Apply|SparseApply|StridedSliceAssign)\w*")
# These attributes refer to omitted ops, contain counters that differ between builds, or contain shapes that are
# inferred again.
DROPPED_ATTRS = ("_class", "_gradient_op_type", "_output_shapes")


@dataclass(frozen=True)
class InferenceGraph:
    """The part of a `SingleDeviceGraph` that serving needs.

    `inputs` and `outputs` map names to names of tensors. `inputs` contains the features that an output depends on.
    `variables` may be pieces of a partitioned variable. `table_initializers` are the names of the ops that fill the
    lookup tables, and `assets` are the names of the tensors with the paths of the files that these ops read.
    """

    graph_def: Any = field(repr=False)
    inputs: dict[str, str]
    outputs: dict[str, str]
    variables: tuple[Variable, ...]
    table_initializers: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()


def inference_graph(single: SingleDeviceGraph) -> InferenceGraph:
    """Returns the part of a training graph that computes its outputs.

    If the model names no outputs, its output is the validation loss, or the loss if there is no validation loss. Raises
    ExportError if the outputs depend on no feature, or if they depend on an update of a variable or on a variable that
    checkpoints do not contain.
    """
    outputs = single.outputs or _loss_of(single)
    wanted = [_op_of(tensor) for tensor in outputs.values()]
    fillers = _table_initializers(single.meta_graph, wanted)
    graph_def = _cut(single.meta_graph.graph_def, [*wanted, *fillers])
    kept = {node.name for node in graph_def.node}
    inputs = {name: tensor for name, tensor in single.evaluated_by.items() if _op_of(tensor) in kept}
    if not inputs:
        raise ExportError(f"the outputs {sorted(outputs)} depend on no feature, so there is nothing to serve")
    _refuse_updates(graph_def)
    paths = single.meta_graph.collection_def[tf.GraphKeys.ASSET_FILEPATHS].node_list.value
    assets = tuple(path for path in paths if _op_of(path) in kept)
    return InferenceGraph(graph_def, inputs, outputs, _variables(single, graph_def), fillers, assets)


def _loss_of(single: SingleDeviceGraph) -> dict[str, str]:
    if single.validation_loss is not None:
        return {"validation_loss": single.validation_loss}
    return {"loss": single.loss}


def _op_of(tensor: str) -> str:
    return tensor.removeprefix("^").split(":")[0]


def _cut(graph_def: tf.GraphDef, ops: Iterable[str]) -> tf.GraphDef:
    """Returns a copy with only the nodes that `ops` need and the functions that these nodes call. The copy has no
    devices."""
    kept = _needed(graph_def, ops)
    cut = tf.GraphDef(versions=graph_def.versions)
    cut.node.extend(node for node in graph_def.node if node.name in kept)
    _copy_functions(graph_def, cut)
    for node in all_nodes(cut):
        node.device = ""
        for attr in DROPPED_ATTRS:
            node.attr.pop(attr, None)
    return cut


def _needed(graph_def: tf.GraphDef, ops: Iterable[str]) -> set[str]:
    """Returns the names of these ops and of all ops that they depend on."""
    source = {node.name: node for node in graph_def.node}
    found: set[str] = set()
    stack = list(ops)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(_op_of(tensor) for tensor in source[name].input)
    return found


def _table_initializers(meta_graph: tf.MetaGraphDef, ops: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the ops that fill the lookup tables that `ops` need."""
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    needed = _needed(meta_graph.graph_def, ops)
    initializers = meta_graph.collection_def[tf.GraphKeys.TABLE_INITIALIZERS].node_list.value
    # The first input of such an op is the table. An initializer of an iterator is in the same collection.
    return tuple(
        name
        for name in dict.fromkeys(initializers)
        if nodes[name].op in FILLS and _op_of(nodes[name].input[0]) in needed
    )


def _copy_functions(graph_def: tf.GraphDef, cut: tf.GraphDef) -> None:
    functions = {function.signature.name: function for function in graph_def.library.function}
    called: set[str] = set()
    stack = list(cut.node)
    while stack:
        node = stack.pop()
        names = {node.op} | {func.name for attr in node.attr.values() for func in (attr.func, *attr.list.func)}
        for name in names & (functions.keys() - called):
            called.add(name)
            stack.extend(functions[name].node_def)
    cut.library.function.extend(functions[name] for name in sorted(called))


def _refuse_updates(graph_def: tf.GraphDef) -> None:
    for node in all_nodes(graph_def):
        if WRITES.fullmatch(node.op):
            raise ExportError(
                f"an output depends on «{node.name}» ({node.op}), which changes a variable. A served "
                "model may only read variables"
            )


def _variables(single: SingleDeviceGraph, graph_def: tf.GraphDef) -> tuple[Variable, ...]:
    known = {variable.name: variable for variable in single.variables if variable.saved}
    read = [node.name for node in graph_def.node if node.op == "VarHandleOp"]
    unsaved = [name for name in read if name not in known]
    if unsaved:
        raise ExportError(f"an output reads «{unsaved[0]}», which no checkpoint contains. Make it a global variable")
    return tuple(known[name] for name in read)
