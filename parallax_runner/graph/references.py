"""Converts the reference variables (`VariableV2`) of a graph to resource variables, once, at capture.

A reference is an alias: an op that reads the reference, or an `Identity` of the reference, sees the current content of
the memory. A `ReadVariableOp` returns a snapshot. Each read is therefore placed where the alias was read: after the
updates that precede the consumer along data or control edges in the original graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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

# Ops that take a variable's handle and leave its value unchanged.
KEEPS_VALUE = (*READERS, *HANDLES_IN, "IsVariableInitialized")


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


def _input_name(name: str) -> str:
    """Returns the name of the node that an input reads or waits for."""
    return _split(name.removeprefix("^"))[0]


def _attrs_to_drop(node: tf.NodeDef, known: set[str]) -> list[str]:
    """Returns the attributes that a node's new op does not know, and the shapes of outputs, which can change. Keeps
    private attributes, whose names begin with an underscore."""
    unknown = [key for key in node.attr if key not in known and not key.startswith("_")]
    return [*unknown, "_output_shapes"] if "_output_shapes" in node.attr else unknown


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
        if node.op in VARIABLES:
            return "VarHandleOp", set()
        if self._is_merged(node.name):
            return node.op.removeprefix("Ref"), set()
        taken = self._references_taken(node)
        if node.op in READERS and self.variable(_data(node)[0]) and self._reads_by_handle(node):
            return READERS[node.op], {0}
        if not taken:
            return node.op, set()
        if node.op in HANDLES_IN:
            return node.op.removeprefix("Ref"), {0}
        return self._resource_op(node, taken), taken

    def _references_taken(self, node: tf.NodeDef) -> set[int]:
        """Returns the positions of the inputs that the node takes as references to variables."""
        inputs = _data(node)
        return {at for at in _reference_inputs(node) if self.variable(inputs[at]) or self._is_merged(inputs[at])}

    def _resource_op(self, node: tf.NodeDef, taken: set[int]) -> str:
        """Returns the type of the op that does the same as the node with resource variables. Raises CaptureError if
        there is no such op."""
        inputs = _data(node)
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
        return target

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
        for key in _attrs_to_drop(new, known):
            del new.attr[key]
        if "dtype" in known:
            key_of_dtype = next(key for key in ("dtype", "T", "Tparams") if key in node.attr)
            new.attr["dtype"].type = node.attr[key_of_dtype].type
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
        consumers = _consumers(self._source.values())
        uses, updates = self._uses_and_updates()
        for variable, of_variable in uses.items():
            after = {update: _reachable(update, consumers) for update in updates[variable]}
            for use in of_variable:
                if self._is_reference(use.tensor) or use.misses_any(after):
                    yield (use.node.name, use.position), use.late_inputs(after)

    def _uses_and_updates(self) -> tuple[dict[str, list[_Use]], dict[str, list[str]]]:
        """Returns the inputs that take each variable's value, and the names of the nodes that update each variable."""
        uses, updates = defaultdict(list), defaultdict(list)
        for node in self._source.values():
            handles = self._targets[node.name][1]
            for position, tensor in enumerate(_data(node)):
                variable = self.variable(tensor)
                if variable is None:
                    continue
                if position not in handles:
                    uses[variable].append(_Use(node, position, tensor))
                elif node.op not in KEEPS_VALUE:
                    updates[variable].append(node.name)
        return uses, updates


@dataclass(frozen=True)
class _Use:
    """An input of a node that takes a variable's value."""

    node: tf.NodeDef
    position: int
    tensor: str

    @property
    def waits(self) -> bool:
        """Whether the node waits for all its inputs. A merge runs as soon as one input is available."""
        return self.node.op not in ("Merge", *VALUES_OUT)

    @property
    def producer(self) -> str:
        """The name of the node that produces the tensor."""
        return _split(self.tensor)[0]

    def misses_any(self, after: Mapping[str, set[str]]) -> bool:
        """Returns whether an update comes before the node, but not before the tensor. `after` contains the nodes that
        depend on each update, and the update itself."""
        return self.waits and any(self._misses(update, later) for update, later in after.items())

    def _misses(self, update: str, later: set[str]) -> bool:
        is_later = self.node.name in later and self.node.name != update
        return is_later and self.producer not in later

    def late_inputs(self, after: Mapping[str, set[str]]) -> list[str]:
        """Returns the control inputs that place a read after the updates that the node waits for."""
        if not self.waits:
            return []
        needs = {_input_name(name) for name in self.node.input} - {self.producer}
        late = [need for need in needs if any(need in later for later in after.values())]
        return [f"^{need}" for need in sorted(late)]


def _consumers(nodes: Iterable[tf.NodeDef]) -> dict[str, list[str]]:
    """Returns the names of the nodes that read or wait for each node."""
    consumers = defaultdict(list)
    for node in nodes:
        for name in node.input:
            consumers[_input_name(name)].append(node.name)
    return consumers


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
