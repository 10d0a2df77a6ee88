"""Converts the reference variables (`VariableV2`) of a graph to resource variables, once, at capture.

A reference is an alias: an op that reads the reference, or an `Identity` of the reference, sees the current content of
the memory. A `ReadVariableOp` returns a snapshot. Each read is therefore placed where the alias was read: after the
updates that precede the consumer along data or control edges in the original graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import types_pb2, variable_pb2
from tensorflow.python.framework import meta_graph as meta_graph_lib
from tensorflow.python.framework import op_def_registry, ops

from parallax_runner.errors import CaptureError
from parallax_runner.graph.all_nodes import nodes_in_functions

VARIABLES = ("VariableV2", "Variable")

# Ops that take a reference. Any other op is replaced by "Resource" + its own name, if TensorFlow has an op with that
# name.
TAKERS = {
    "Assign": "AssignVariableOp",
    "AssignAdd": "AssignAddVariableOp",
    "AssignSub": "AssignSubVariableOp",
    "IsVariableInitialized": "VarIsInitializedOp",
}

# Ops that read a reference through its handle. Identity ops do so only if their input is the reference itself.
IDENTITIES = ("Identity", "RefIdentity")
READERS = {
    "Identity": "ReadVariableOp",
    "RefIdentity": "ReadVariableOp",
    "Gather": "ResourceGather",
    "GatherV2": "ResourceGather",
    "GatherNd": "ResourceGatherNd",
    "Shape": "VariableShape",
}

# TensorFlow 1 control flow: the handle enters a branch or a frame, as for resource variables, and the value leaves it.
HANDLES_IN = ("RefSwitch", "RefEnter")
VALUES_OUT = ("RefMerge", "RefNextIteration", "RefExit")
VALUES_IN = ("Switch", "Enter")


def to_resources(meta_graph: tf.MetaGraphDef) -> tf.MetaGraphDef:
    """Returns the same graph with resource variables under the same names, or `meta_graph` itself if the graph has no
    reference variables.

    Node names, control edges, colocation, devices and slots stay the same. Update ops lose their outputs (`Assign:0`).
    Consumers of these outputs read the variable after the update instead. The inserted reads are named
    `<consumer>/read_<input>`.

    Raises CaptureError if a reference variable is inside a function, if an op that takes a reference has no equivalent
    for resource variables, if a condition determines which variable is updated, or if the shape of a variable is not
    fully defined.
    """
    for node in nodes_in_functions(meta_graph.graph_def):
        if node.op in VARIABLES:
            raise CaptureError(f"reference variable «{node.name}» is inside a function: use resource variables")
    if not any(node.op in VARIABLES for node in meta_graph.graph_def.node):
        return meta_graph
    converted = tf.MetaGraphDef()
    converted.CopyFrom(meta_graph)
    nodes = _Conversion(meta_graph.graph_def).nodes()
    del converted.graph_def.node[:]
    converted.graph_def.node.extend(nodes)
    converted.meta_info_def.stripped_op_list.CopyFrom(meta_graph_lib.stripped_op_list_for_graph(converted.graph_def))
    _convert_collections(converted, {node.name: node.op for node in meta_graph.graph_def.node})
    return converted


def _convert_collections(meta_graph: tf.MetaGraphDef, old_ops: dict[str, str]) -> None:
    new_ops = {node.name: node.op for node in meta_graph.graph_def.node}
    for key, collection in meta_graph.collection_def.items():
        if ops.get_collection_proto_type(key) is variable_pb2.VariableDef:
            for index, serialized in enumerate(collection.bytes_list.value):
                proto = variable_pb2.VariableDef.FromString(serialized)
                proto.is_resource |= old_ops.get(_split(proto.variable_name)[0]) in VARIABLES
                # `tf.train.init_from_checkpoint` names the assignment's output, which a resource variable's lacks.
                proto.initializer_name = _split(proto.initializer_name)[0]
                collection.bytes_list.value[index] = proto.SerializeToString(deterministic=True)
        for index, element in enumerate(collection.node_list.value):
            name = _split(element)[0]
            op = new_ops.get(name)
            if op is not None and op != old_ops[name] and not op_def_registry.get(op).output_arg:
                collection.node_list.value[index] = name


def _split(tensor: str) -> tuple[str, int]:
    name, _, output = tensor.partition(":")
    return name, int(output or 0)


def _data(node: tf.NodeDef) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _control(node: tf.NodeDef) -> list[str]:
    return [name for name in node.input if name.startswith("^")]


def _reference_inputs(node: tf.NodeDef) -> set[int]:
    """Returns the positions of the inputs that the op declares as references, or an empty set for unknown ops."""
    definition = op_def_registry.get(node.op)
    found: list[bool] = []
    for argument in definition.input_arg if definition else ():
        found += [argument.is_ref] * (node.attr[argument.number_attr].i if argument.number_attr else 1)
    return {position for position, is_reference in enumerate(found) if is_reference}


class _Conversion:
    """The conversion of one graph. The source graph stays unchanged. `handle` and `_value` add nodes to `_added`."""

    def __init__(self, graph_def: tf.GraphDef) -> None:
        self._source = {node.name: node for node in graph_def.node}
        self._added: dict[str, tf.NodeDef] = {}
        self._targets = {node.name: self._target(node) for node in graph_def.node}
        self._reads = dict(self._ordered_reads())

    def nodes(self) -> list[tf.NodeDef]:
        """Returns the nodes of the converted graph."""
        return [self._converted(node) for node in self._source.values()] + list(self._added.values())

    # Classifying tensors. Aliases never pass through a merge, so these recursions terminate.

    def variable(self, tensor: str) -> str | None:
        """Returns the variable whose memory the tensor shares as a reference or as a value, or None."""
        node = self._source[_split(tensor)[0]]
        if node.op in VARIABLES:
            return node.name
        passes = node.op in IDENTITIES + VALUES_IN or self._is_reference(tensor)
        return self.variable(node.input[0]) if passes else None

    def _is_reference(self, tensor: str) -> bool:
        node = self._source[_split(tensor)[0]]
        if node.op in VARIABLES + HANDLES_IN:
            return True
        if node.op in VALUES_OUT + IDENTITIES or 0 not in _reference_inputs(node):
            return False
        return any(argument.is_ref for argument in op_def_registry.get(node.op).output_arg)

    def _is_merged(self, tensor: str) -> bool:
        """Returns whether the tensor was a reference to one of several variables. The conversion turns the tensor into
        a value."""
        node = self._source[_split(tensor)[0]]
        return node.op in VALUES_OUT or (node.op in (*HANDLES_IN, "RefIdentity") and self._is_merged(node.input[0]))

    def handle(self, tensor: str) -> str:
        """Returns the handle of the tensor's variable, in the tensor's own branch and frame."""
        name, output = _split(tensor)
        node = self._source[name]
        if node.op in VARIABLES + HANDLES_IN:
            return tensor
        source = node.input[0]
        if node.op not in VALUES_IN:
            return self.handle(source)
        companion = f"{name}/handle"
        if companion not in self._added:
            control = dict.fromkeys(_control(node) + self._order(source))
            new = tf.NodeDef(name=companion, op=node.op, device=node.device, attr=node.attr)
            new.input[:] = [self.handle(source), *_data(node)[1:], *control]
            new.attr["T"].type = types_pb2.DT_RESOURCE
            new.attr.pop("_output_shapes", None)
            self._added[companion] = new
        return f"{companion}:{output}"

    def _order(self, tensor: str) -> list[str]:
        """Returns the control inputs for an op that uses the handle in place of the tensor."""
        node = self._source[_split(tensor)[0]]
        if node.op in VARIABLES + HANDLES_IN + VALUES_IN:
            return []
        if node.op in IDENTITIES:
            return _control(node) + self._order(node.input[0])
        return [f"^{node.name}"]

    # Converting nodes.

    def _target(self, node: tf.NodeDef) -> tuple[str, set[int]]:
        """Returns the type of the op that replaces the node's op, and the positions of the inputs that it takes as
        handles."""
        inputs = _data(node)
        if node.op in VARIABLES:
            return "VarHandleOp", set()
        if node.op in VALUES_OUT or (node.op in (*HANDLES_IN, "RefIdentity") and self._is_merged(inputs[0])):
            return node.op.removeprefix("Ref"), set()
        taken = {at for at in _reference_inputs(node) if self.variable(inputs[at]) or self._is_merged(inputs[at])}
        if node.op in READERS and self.variable(inputs[0]) and self._reads_by_handle(node):
            return READERS[node.op], {0}
        if not taken:
            return node.op, set()
        if node.op in HANDLES_IN:
            return node.op.removeprefix("Ref"), {0}
        target = TAKERS.get(node.op, f"Resource{node.op}")
        definition = op_def_registry.get(target)
        if definition is None or len(definition.input_arg) != len(inputs):
            raise CaptureError(f"op «{node.name}» ({node.op}) takes a reference variable: use resource variables")
        for at in taken:
            if self.variable(inputs[at]) is None:
                raise CaptureError(
                    f"op «{node.name}» ({node.op}) updates a variable that a condition selects («{inputs[at]}»): "
                    "update each variable inside its own branch"
                )
        return target, taken

    def _reads_by_handle(self, node: tf.NodeDef) -> bool:
        if node.op in IDENTITIES:
            return node.op == "RefIdentity" or self._is_reference(node.input[0])
        if node.op != "GatherV2":
            return True
        axis = self._source[_split(node.input[2])[0]]
        return axis.op == "Const" and not tf.make_ndarray(axis.attr["value"].tensor) and not node.attr["batch_dims"].i

    def _converted(self, node: tf.NodeDef) -> tf.NodeDef:
        target, handles = self._targets[node.name]
        new = tf.NodeDef()
        new.CopyFrom(node)
        data, control = _data(node), _control(node)
        if target == "ResourceGather":
            del data[2:]  # The axis of GatherV2.
        for position, tensor in enumerate(data):
            if position in handles:
                control += self._order(tensor)
            data[position] = self.handle(tensor) if position in handles else self._value(node, position, tensor)
        new.input[:] = data + list(dict.fromkeys(control))
        if target != node.op:
            self._retype(new, node, target)
        if node.op in HANDLES_IN and handles:
            new.attr["T"].type = types_pb2.DT_RESOURCE
        return new

    def _retype(self, new: tf.NodeDef, node: tf.NodeDef, target: str) -> None:
        known = {attr.name for attr in op_def_registry.get(target).attr}
        for key in set(new.attr):
            if key == "_output_shapes" or (key not in known and not key.startswith("_")):
                del new.attr[key]
        if "dtype" in known:
            new.attr["dtype"].type = next(node.attr[key].type for key in ("dtype", "T", "Tparams") if key in node.attr)
        if node.op in VARIABLES:
            shape = tf.TensorShape(node.attr["shape"].shape)
            if not shape.is_fully_defined():
                raise CaptureError(f"variable «{node.name}» has shape {shape}: give it a fully defined shape")
            new.attr["shared_name"].s = node.name.encode()
        new.op = target

    def _value(self, node: tf.NodeDef, position: int, tensor: str) -> str:
        """Returns the input for a position that takes a value: either the tensor itself or a new read."""
        order = self._reads.get((node.name, position))
        if order is None:
            return tensor
        variable = self._source[self.variable(tensor) or ""]
        name = f"{node.name}/read_{position}"
        while name in self._source or name in self._added:
            name += "_"
        read = tf.NodeDef(name=name, op="ReadVariableOp", device=variable.device)
        read.attr["dtype"].type = variable.attr["dtype"].type
        read.input[:] = [self.handle(tensor), *dict.fromkeys(self._order(tensor) + order)]
        self._added[name] = read
        return name

    # Placing reads.

    def _ordered_reads(self) -> Iterator[tuple[tuple[str, int], list[str]]]:
        """Yields (node, position) for each input that needs its own read, with the control inputs that place the read
        after updates."""
        users, updates, consumers = defaultdict(list), defaultdict(list), defaultdict(list)
        for node in self._source.values():
            for name in node.input:
                consumers[_split(name.removeprefix("^"))[0]].append(node.name)
            handles = self._targets[node.name][1]
            for position, tensor in enumerate(_data(node)):
                variable = self.variable(tensor)
                if variable is not None and position not in handles:
                    users[variable].append((node, position, tensor))
                elif variable is not None and node.op not in (*READERS, *HANDLES_IN, "IsVariableInitialized"):
                    updates[variable].append(node.name)
        for variable, edges in users.items():
            after = {update: _reachable(update, consumers) for update in updates[variable]}
            for node, position, tensor in edges:
                producer = _split(tensor)[0]
                missed = [
                    update
                    for update, later in after.items()
                    if node.name in later and node.name != update and producer not in later
                ]
                waits = node.op not in ("Merge", *VALUES_OUT)  # these ops run as soon as one input is available
                if self._is_reference(tensor) or (missed and waits):
                    needs = {_split(name.removeprefix("^"))[0] for name in node.input if waits} - {producer}
                    late = sorted(need for need in needs if any(need in later for later in after.values()))
                    yield (node.name, position), [f"^{need}" for need in late]


def _reachable(start: str, consumers: dict[str, list[str]]) -> set[str]:
    """Returns the node and all nodes that depend on it."""
    found = {start}
    stack = [start]
    while stack:
        for name in consumers.get(stack.pop(), ()):
            if name not in found:
                found.add(name)
                stack.append(name)
    return found
