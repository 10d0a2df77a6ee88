"""The side effects of an op: writes and random draws, including those inside the functions that the op calls (branches,
loops, `tf.function`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import function_pb2

from parallax_runner.graph import edit, seeds

# Ops whose functions take all inputs of the op, and ops whose first input chooses the function.
TAKES_ALL = frozenset({"While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"})
TAKES_ALL_BUT_FIRST = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


@dataclass
class Effects:
    """The side effects of the ops in one graph. `functions` contains the graph's functions by name."""

    functions: dict[str, function_pb2.FunctionDef] = field(default_factory=dict)
    _written: dict[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: tf.Graph) -> Effects:
        """Returns the effects of the ops in a graph."""
        return cls({one.signature.name: one for one in graph.as_graph_def().library.function})

    def written_by(self, op: tf.Operation) -> list[str]:
        """Returns the names of the variables that an op writes, or that it may write inside a function."""
        handles = (edit.handle_behind(tensor) for tensor in self.written_inputs(op))
        return list(dict.fromkeys(handle.name for handle in handles if handle is not None))

    def written_inputs(self, op: tf.Operation) -> list[tf.Tensor]:
        """Returns the inputs of an op that are resources which the op writes, or may write inside a function."""
        if edit.writes(op.type):
            return [tensor for tensor in op.inputs if tensor.dtype == tf.resource][:1]
        positions = self._written_positions(op.node_def, len(op.inputs))
        return [op.inputs[at] for at in sorted(positions) if op.inputs[at].dtype == tf.resource]

    def called_by(self, node: tf.NodeDef) -> list[str]:
        """Returns the types of all ops in the functions that an op calls."""
        return [inner.op for inner in self._inside(node)]

    def draws(self, op: tf.Operation) -> bool:
        """Returns whether a function that an op calls contains a random op."""
        return bool(self.functions) and any(seeds.draws(node) for node in self._inside(op.node_def))

    def _written_positions(self, node: tf.NodeDef, inputs: int) -> set[int]:
        """Returns the positions of a node's inputs that its functions write. `inputs` is the number of inputs."""
        found = set[int]()
        for name in self._called(node):
            written = self._written_arguments(name)
            if not written:
                continue
            if node.op in TAKES_ALL or node.op == name:
                found |= written
            elif node.op in TAKES_ALL_BUT_FIRST:
                found |= {at + 1 for at in written}
            else:  # it is unknown which input becomes which argument
                found |= set(range(inputs))
        return found

    def _written_arguments(self, name: str) -> frozenset[int]:
        """Returns the positions of a function's arguments that are resources which the function writes."""
        if name not in self._written:
            self._written[name] = frozenset()  # a function that calls itself
            function = self.functions[name]
            places = {argument.name: at for at, argument in enumerate(function.signature.input_arg)}
            self._written[name] = frozenset(places[each] for each in self._written_in(function) if each in places)
        return self._written[name]

    def _written_in(self, function: function_pb2.FunctionDef) -> Iterator[str]:
        """Yields the sources of the resources that the nodes of a function write: arguments, or outputs of nodes."""
        handed_on = {node.name: node.input[0] for node in function.node_def if node.op == "Identity"}
        for node in function.node_def:
            inputs = [each for each in node.input if not each.startswith("^")]
            for at in self._written_at(node, len(inputs)):
                source = inputs[at]
                while source.split(":")[0] in handed_on:
                    source = handed_on[source.split(":")[0]]
                yield source

    def _written_at(self, node: tf.NodeDef, inputs: int) -> Iterable[int]:
        if not edit.writes(node.op):
            return self._written_positions(node, inputs)
        return [edit.position_of_resource(node.op)]

    def _called(self, node: tf.NodeDef) -> list[str]:
        called = {value.func.name for value in node.attr.values() if value.HasField("func")}
        called |= {func.name for value in node.attr.values() for func in value.list.func}
        called |= {node.op}  # an op's type can be the name of a function
        return sorted(called & self.functions.keys())

    def _inside(self, node: tf.NodeDef, above: frozenset[str] = frozenset()) -> Iterator[tf.NodeDef]:
        for name in self._called(node):
            if name in above:
                continue
            for inner in self.functions[name].node_def:
                yield inner
                yield from self._inside(inner, above | {name})
