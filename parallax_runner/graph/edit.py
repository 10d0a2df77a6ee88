"""Finds related ops in a `tf.Graph`, sorts ops, and changes the inputs of ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

Op: TypeAlias = tf.Operation

# Ops whose output goes back to the beginning of a loop of TensorFlow 1.
LOOP_OPS = frozenset({"NextIteration", "RefNextIteration"})
# Ops between a variable and its use in a branch or loop of TensorFlow 1.
HANDED_ON = frozenset({"Enter", "Identity", "Switch"})
# Ops that take the resource of a variable and have state, but do not change the variable.
READERS = frozenset(
    {
        "DestroyResourceOp",
        "DisableCopyOnRead",
        "IsResourceHandleRefCounting",
        "ReadVariableOp",
        "ReadVariableXlaSplitND",
        "ResourceGather",
        "ResourceGatherNd",
        "VarIsInitializedOp",
        "VariableShape",
        "_ReadVariablesOp",
    }
)
# The position of the resource among the inputs of an op that takes none.
NO_RESOURCE = -1
# Types of ops that run a Python function. The function exists only in the process that created the op.
PYTHON_TYPES = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def ancestors(starts: Iterable[Op], *, stop_at: frozenset[str] = frozenset(), control: bool = True) -> set[Op]:
    """Returns `starts` and all ops that they depend on. The traversal stops at tensors named in `stop_at`."""
    found: set[Op] = set()
    stack = list(starts)
    while stack:
        op = stack.pop()
        if op in found:
            continue
        found.add(op)
        stack.extend(tensor.op for tensor in op.inputs if tensor.name not in stop_at)
        if control:
            stack.extend(op.control_inputs)
    return found


def descendants(starts: Iterable[tf.Tensor], *, within: AbstractSet[Op]) -> set[Op]:
    """Returns all ops in `within` that depend on one of the tensors through data edges."""
    found: set[Op] = set()
    stack = [op for tensor in starts for op in tensor.consumers()]
    while stack:
        op = stack.pop()
        if op in found or op not in within:
            continue
        found.add(op)
        stack.extend(consumer for output in op.outputs for consumer in output.consumers())
    return found


def in_order(ops: AbstractSet[Op]) -> list[Op]:
    """Returns the ops of an acyclic set in topological order."""
    ordered: list[Op] = []
    state: dict[Op, bool] = {}
    for root in sorted(ops, key=lambda op: op.name):
        stack: list[tuple[Op, bool]] = [(root, False)]
        while stack:
            op, expanded = stack.pop()
            if expanded:
                ordered.append(op)
                continue
            if op in state:
                continue
            state[op] = True
            stack.append((op, True))
            needs = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
            stack.extend((need, False) for need in needs if need in ops and need not in state)
    return ordered


def reconnect(old: tf.Tensor, new: tf.Tensor, *, where: Callable[[Op], bool]) -> int:
    """Replaces `old` with `new` in the inputs of every consumer that satisfies `where`. Returns the number of changed
    inputs."""
    changed = 0
    for op in set(old.consumers()):
        if where(op):
            changed += reconnect_inputs(op, {old.name: new})
    return changed


def reconnect_all(replacements: Iterable[tuple[tf.Tensor, tf.Tensor]]) -> None:
    """Replaces the first tensor of each pair by the second in the inputs of all its consumers.

    TensorFlow reads all inputs of an op again after each change, so the inputs of an op are replaced together.
    """
    replacements = list(replacements)
    by_name = {old.name: new for old, new in replacements}
    for op in {op for old, _ in replacements for op in old.consumers()}:
        reconnect_inputs(op, by_name)


def reconnect_inputs(op: Op, replacements: dict[str, tf.Tensor]) -> int:
    """Replaces the inputs of `op` that are named in `replacements`. Returns the number of changed inputs."""
    changed = 0
    for index, tensor in enumerate(op.inputs):
        if tensor.name in replacements:
            op._update_input(index, replacements[tensor.name])
            changed += 1
    return changed


def set_control_inputs(op: Op, control_inputs: Iterable[Op]) -> None:
    """Replaces all control inputs of `op`."""
    op._remove_all_control_inputs()
    op._add_control_inputs(sorted(set(control_inputs), key=lambda other: other.name))


def handle_of(op: Op) -> list[Op]:
    """Returns the `VarHandleOp`s that are inputs of an op."""
    return [tensor.op for tensor in op.inputs if tensor.op.type == "VarHandleOp"]


def handle_behind(tensor: tf.Tensor) -> Op | None:
    """Returns the `VarHandleOp` that a tensor comes from, even in a branch or loop, or None for any other tensor."""
    op = tensor.op
    while op.type in HANDED_ON:
        op = op.inputs[0].op
    return op if op.type == "VarHandleOp" else None


def is_write(op: Op) -> bool:
    """Returns whether the op itself changes a variable. Ops that call functions are the subject of `Effects`."""
    return writes(op.type) and handle_behind(op.inputs[position_of_resource(op.type)]) is not None


def writes(op_type: str) -> bool:
    """Returns whether ops of this type change the resource that they take, if that resource is a variable.

    Every stateful op that takes a resource does, unless it is known to be a reader.
    """
    return op_type not in READERS and position_of_resource(op_type) != NO_RESOURCE


def updates_places(op_type: str) -> bool:
    """Returns whether an op of this type sets or changes whole rows or a whole variable, so that a piece of the
    variable can be updated by the same op."""
    if op_type.startswith("ResourceScatterNd"):  # addresses elements by several indices
        return False
    is_assignment = op_type.startswith("Assign") and op_type.endswith("VariableOp")
    return is_assignment or op_type.startswith(("ResourceApply", "ResourceSparseApply", "ResourceScatter"))


@functools.cache
def position_of_resource(op_type: str) -> int:
    """Returns the position of the first input that an op of this type declares as a resource.

    Returns NO_RESOURCE if there is none, or if the op has no state. Inputs before a resource are single tensors.
    """
    definition = op_def_registry.get(op_type)
    if definition is None or not definition.is_stateful:
        return NO_RESOURCE
    kinds = [argument.type for argument in definition.input_arg]
    return kinds.index(types_pb2.DT_RESOURCE) if types_pb2.DT_RESOURCE in kinds else NO_RESOURCE


def is_plain(op: Op) -> bool:
    """Returns whether equal inputs produce equal outputs in any process.

    Such an op has no state, draws no random numbers, and calls neither Python code nor graph functions.
    """
    calls = any(attr.HasField("func") or attr.list.func for attr in op.node_def.attr.values())
    return not (op.op_def.is_stateful or calls or op.type in PYTHON_TYPES)


def joins_rows(op: Op) -> bool:
    """Returns whether the op concatenates tensors along their first dimension."""
    if op.type != "ConcatV2":
        return False
    axis, rank = tf.get_static_value(op.inputs[-1]), op.inputs[0].shape.rank
    return axis is not None and (axis == 0 or (rank is not None and axis == -rank))


def clone(op: Op, inputs: list[tf.Tensor], *, name: str, control_inputs: Iterable[Op], device: str) -> Op:
    """Adds a copy of `op` with the given inputs, control inputs and device to the same graph, and returns the copy."""
    graph = op.graph
    attrs = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
    with graph.control_dependencies(None), graph.control_dependencies(list(control_inputs)), graph.device(device):
        return graph._create_op_internal(
            op.type, inputs, [output.dtype.base_dtype for output in op.outputs], name=name, attrs=attrs
        )
