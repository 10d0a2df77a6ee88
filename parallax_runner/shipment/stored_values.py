"""Replaces the initial values that only this process has, and large constants of initializers, by values that a
TensorFlow checkpoint contains. Another process can then load the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.edit import PYTHON_TYPES
from parallax_runner.graph.fingerprint import fingerprint_of
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

# The constant in the graph that contains the prefix of the checkpoint. It is empty until a process loads the graph.
PREFIX = "shipment/values"
# Constants of initializers, such as the words of a lookup table, from this size on are stored apart, because TensorFlow
# imports large graphs slowly.
LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredValue:
    """A value of the checkpoint. `read` returns it as a tensor or an array, and `size_bytes` is its size in memory."""

    read: Callable[[], Any]
    size_bytes: int


@dataclass(frozen=True)
class StoredValues:
    """A graph that any process can initialize, if the checkpoint contains `values`, by their names there."""

    single: SingleDeviceGraph
    values: Mapping[str, StoredValue]

    @property
    def size_bytes(self) -> int:
        """The size of the checkpoint."""
        return sum(value.size_bytes for value in self.values.values())


def python_op(single: SingleDeviceGraph) -> str | None:
    """Returns the name of an op that calls Python code of the user, or None if there is no such op."""
    calling = (node for node in all_nodes(single.meta_graph.graph_def) if node.op in PYTHON_TYPES)
    return next((node.name for node in calling if node.name not in single.initial_values), None)


def with_stored_values(single: SingleDeviceGraph) -> StoredValues:
    """Returns the graph with initial values from a checkpoint, and these values.

    The graph has a new fingerprint, which does not depend on the values.
    """
    meta_graph = tf.MetaGraphDef()
    meta_graph.CopyFrom(single.meta_graph)
    graph_def = meta_graph.graph_def
    values: dict[str, StoredValue] = {}
    for node in list(graph_def.node):
        if node.name in single.initial_values:
            values[node.name] = _of_variable(node, single.initial_values[node.name], single)
            _restore_in_place(graph_def, node)
    for node in _large_constants(single, graph_def):
        values[node.name] = _of_constant(node)
        _restore_before(graph_def, node)
    if not values:
        return StoredValues(single, {})
    prefix = graph_def.node.add(name=PREFIX, op="Const")
    prefix.attr["dtype"].type = tf.string.as_datatype_enum
    set_prefix(graph_def, "")
    changed = dataclasses.replace(
        single, meta_graph=meta_graph, fingerprint=fingerprint_of(graph_def), initial_values={}, callbacks=()
    )
    return StoredValues(changed, values)


def with_constants(stored: StoredValues) -> SingleDeviceGraph:
    """Returns the graph with its large constants, but without the initial values that only this process has. A served
    model contains the words of its lookup tables."""
    meta_graph = tf.MetaGraphDef()
    meta_graph.CopyFrom(stored.single.meta_graph)
    for node in meta_graph.graph_def.node:
        if node.name in stored.values and node.op == "EnsureShape":
            dtype = node.attr["T"].type
            node.op = "Const"
            del node.input[:]
            node.attr.clear()
            node.attr["dtype"].type = dtype
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(stored.values[node.name].read(), dtype))
    return dataclasses.replace(stored.single, meta_graph=meta_graph)


def set_prefix(graph_def: Any, prefix: str) -> None:
    """Sets the prefix of the checkpoint from which a graph restores its values. Does nothing for a graph without such
    values."""
    for node in graph_def.node:
        if node.name == PREFIX:
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(prefix.encode()))


def write_values(stored: StoredValues, prefix: Path) -> None:
    """Writes the values as the TensorFlow checkpoint `prefix`."""
    names = sorted(stored.values)
    if not names:
        return
    with context.eager_mode(), tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(stored.values[name].read()) for name in names],
        )


def _of_variable(node: Any, read: Callable[[], Any], single: SingleDeviceGraph) -> StoredValue:
    (dtype,) = node.attr["Tout"].list.type
    # The op has no shape, but it is named after its variable.
    shapes = {f"{one.name}/": one.shape for one in single.variables}
    shape = next((shape for start, shape in shapes.items() if node.name.startswith(f"{start}initial_value/")), ())
    return StoredValue(read, tf.TensorShape(shape).num_elements() * tf.as_dtype(dtype).size)


def _of_constant(node: Any) -> StoredValue:
    tensor = node.attr["value"].tensor
    kept = type(tensor)()
    kept.CopyFrom(tensor)
    return StoredValue(lambda: tf.make_ndarray(kept), kept.ByteSize())


def _restore_in_place(graph_def: Any, node: Any) -> None:
    """Turns an op that calls Python into an op that restores the tensor of the op's name."""
    dtypes = list(node.attr["Tout"].list.type)
    _make_restoring(graph_def, node, node.name, dtypes)


def _restore_before(graph_def: Any, constant: Any) -> None:
    """Turns a constant into an op that passes on a restored tensor and states its shape."""
    dtype, tensor_shape = constant.attr["dtype"].type, constant.attr["value"].tensor.tensor_shape
    shape = type(tensor_shape)()
    shape.CopyFrom(tensor_shape)
    restoring = graph_def.node.add(name=f"{constant.name}/stored", device=constant.device)
    _make_restoring(graph_def, restoring, constant.name, [dtype])
    constant.op = "EnsureShape"
    constant.attr.clear()
    constant.attr["T"].type = dtype
    constant.attr["shape"].shape.CopyFrom(shape)
    constant.input.insert(0, restoring.name)


def _make_restoring(graph_def: Any, node: Any, stored_name: str, dtypes: Iterable[int]) -> None:
    controls = [name for name in node.input if name.startswith("^")]
    names = _strings(graph_def, f"{node.name}/tensor_names", stored_name)
    slices = _strings(graph_def, f"{node.name}/shape_and_slices", "")
    node.op = "RestoreV2"
    node.input[:] = [PREFIX, names, slices, *controls]
    node.attr.clear()
    node.attr["dtypes"].list.type.extend(dtypes)


def _strings(graph_def: Any, name: str, content: str) -> str:
    """Adds a constant vector with one string, and returns its name."""
    node = graph_def.node.add(name=name, op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([content.encode()]))
    return name


def _large_constants(single: SingleDeviceGraph, graph_def: Any) -> list[Any]:
    """Returns the nodes of large constants that only initializers of variables and lookup tables need. A step reads its
    constants from the graph, because it would otherwise read a file each time."""
    nodes = {node.name: node for node in graph_def.node}
    in_steps = _needed(nodes, _fetched(single))
    tables = single.meta_graph.collection_def[tf.GraphKeys.TABLE_INITIALIZERS].node_list.value
    initial = _needed(nodes, [*(variable.initializer for variable in single.variables), *tables])
    return [
        node
        for node in graph_def.node
        if node.op == "Const"
        and node.ByteSize() >= LARGE_BYTES
        and node.name in initial
        and node.name not in in_steps
        and not node.input
    ]


def _fetched(single: SingleDeviceGraph) -> Iterator[str]:
    yield single.loss
    yield single.train_op
    yield from single.fetched_in_training
    yield from single.fetched_in_validation
    yield from single.outputs.values()
    yield from single.asked
    yield from single.observers


def _needed(nodes: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Returns the names of the nodes that compute these ops or tensors."""
    found: set[str] = set()
    stack = [_node_of(name) for name in names]
    while stack:
        name = stack.pop()
        if name in found or name not in nodes:
            continue
        found.add(name)
        stack.extend(_node_of(source) for source in nodes[name].input)
    return found


def _node_of(name: str) -> str:
    return name.lstrip("^").split(":")[0]
