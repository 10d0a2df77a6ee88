"""Copies the ops of a part into the graph of a step, once for each part."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph.edit import Op
from parallax_runner.graph.named_apart import named_apart
from parallax_runner.graph.parts.part_ops import PartOps

# What produces a resource, such as a variable: the step and all its parts use the same.
Tensors = Mapping[str, tf.Tensor]


@dataclass(frozen=True)
class Copy:
    """The tensors of a part in the graph of the step, by their names in the graph of the part, and its writes."""

    tensors: Tensors
    writes: tuple[Op, ...]


def shared_tensors(part: PartOps, graph: tf.Graph) -> Tensors:
    """Copies the ops that all parts share into `graph`, the default graph, whose variables and tables they use."""
    resources = {op for op in part.shared if _is_resource(op)}
    given = {output.name: graph.get_tensor_by_name(output.name) for op in resources for output in op.outputs}
    return given | _copied(part, part.shared - resources, given, name="parts/shared")


def copy_of_part(part: PartOps, number: int, features: Tensors, shared: Tensors, after: Op | None) -> Copy:
    """Copies the repeated ops into the default graph. `features` maps the placeholders of the part to its examples.

    Only lookups by features do not wait for `after`.
    """
    name = f"parts/part_{number}"
    given = {**shared, **features}
    given |= _copied(part, part.lookups, given, name=f"{name}/lookups")
    rest = part.repeated - part.lookups
    used = sorted(key for key in given if _is_used(part, key, rest))  # in an order that all processes share
    with tf.name_scope(f"{name}/waiting/"):
        waiting = {key: _after(given[key], after) for key in used}
    copied = _copied(part, rest, waiting, name=name)
    graph = tf.get_default_graph()
    for op in rest if after is not None else ():
        if not op.inputs or any(tensor.dtype == tf.resource for tensor in op.inputs):
            graph.get_operation_by_name(f"{name}/{op.name}")._add_control_input(after)
    writes = [graph.get_operation_by_name(f"{name}/{op.name}") for op in sorted(part.writes, key=lambda op: op.name)]
    return Copy({**given, **copied}, tuple(writes))


def _is_resource(op: Op) -> bool:
    return not op.inputs and any(output.dtype == tf.resource for output in op.outputs)


def _is_used(part: PartOps, name: str, ops: AbstractSet[Op]) -> bool:
    return any(consumer in ops for consumer in part.graph.get_tensor_by_name(name).consumers())


def _after(tensor: tf.Tensor, after: Op | None) -> tf.Tensor:
    """Returns the same values, which are available only after an op. Shapes and ids need not wait, because only other
    values lead to large ones."""
    if after is None or not tensor.dtype.is_floating or tensor.op.type == "Const":
        return tensor
    with tf.control_dependencies([after]):
        return tf.identity(tensor)


def _copied(part: PartOps, ops: Iterable[Op], given: Tensors, *, name: str) -> dict[str, tf.Tensor]:
    """Copies ops under the prefix `name`. Inputs from other ops are those in `given`."""
    chosen = {op.name: op for op in ops}
    if not chosen:
        return {}
    inputs = {tensor.name for op in chosen.values() for tensor in op.inputs if tensor.op.name not in chosen}
    input_map = {key: given[key] for key in inputs}
    tf.import_graph_def(_graph_of(part, chosen, f"{name.replace('/', '_')}/"), name=name, input_map=input_map)
    graph = tf.get_default_graph()
    outputs = [output for op in chosen.values() for output in op.outputs]
    return {output.name: graph.get_tensor_by_name(f"{name}/{output.name}") for output in outputs}


def _graph_of(part: PartOps, chosen: Container[str], prefix: str) -> tf.GraphDef:
    """Returns the ops named in `chosen`, without control inputs from other ops. Functions and loops get a prefix."""
    graph_def = named_apart(part.graph.as_graph_def(), prefix)
    kept = [node for node in graph_def.node if node.name in chosen]
    for node in kept:
        node.attr.pop("_class", None)
        node.input[:] = [one for one in node.input if not one.startswith("^") or one[1:] in chosen]
    copied = tf.GraphDef(library=graph_def.library, versions=graph_def.versions)
    copied.node.extend(kept)
    return copied
