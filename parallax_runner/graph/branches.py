"""The two branches of a functional `If`, for stages that analyze the ops inside the branches."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import function_pb2

# The function library of each graph, cached because exporting a graph is slow.
_functions: weakref.WeakKeyDictionary[tf.Graph, dict[str, function_pb2.FunctionDef]] = weakref.WeakKeyDictionary()

IF_TYPES = frozenset({"If", "StatelessIf"})


@dataclass
class Branch:
    """The function of one branch.

    `arguments` maps the name of each argument to the index of the `If` input that it receives. Input 0 is the
    condition.
    """

    definition: function_pb2.FunctionDef
    nodes: dict[str, tf.NodeDef] = field(init=False)
    arguments: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.definition.node_def}
        self.arguments = {arg.name: at for at, arg in enumerate(self.definition.signature.input_arg, start=1)}

    def result(self, number: int) -> str:
        """Returns the source of output `number`: an argument, or an output of a node."""
        return self.source(self.definition.ret[self.definition.signature.output_arg[number].name])

    def source(self, tensor: str) -> str:
        """Follows a tensor back through `Identity` nodes and returns its source."""
        node = self.node(tensor)
        return self.source(node.input[0]) if node is not None and node.op == "Identity" else tensor

    def node(self, tensor: str) -> tf.NodeDef | None:
        """Returns the node that produces a tensor, or None for an argument."""
        return self.nodes.get(tensor.split(":")[0])

    def inputs(self, tensor: str) -> list[str]:
        """Returns the sources of the inputs of the node that produces a tensor, or an empty list for an argument."""
        node = self.node(tensor)
        return [] if node is None else [self.source(each) for each in node.input if not each.startswith("^")]

    def type_of(self, tensor: str) -> str:
        """Returns the op type of the node that produces a tensor, or an empty string for an argument."""
        node = self.node(tensor)
        return "" if node is None else node.op


def branches(op: tf.Operation) -> tuple[Branch, Branch]:
    """Returns the then-branch and the else-branch of a functional `If`."""
    names = [op.get_attr(f"{name}_branch").name for name in ("then", "else")]
    functions = _functions.get(op.graph, {})
    if not functions.keys() >= set(names):
        library = op.graph.as_graph_def().library
        functions = _functions[op.graph] = {function.signature.name: function for function in library.function}
    then, other = (functions[name] for name in names)
    return Branch(then), Branch(other)


def handed_through(tensor: tf.Tensor) -> tf.Tensor | None:
    """Returns the input that both branches of an `If` return as this output, or None if there is no such input."""
    if tensor.op.type not in IF_TYPES:
        return None
    sources = {branch.arguments.get(branch.result(tensor.value_index)) for branch in branches(tensor.op)}
    (at, *others) = sources
    return None if others or at is None else tensor.op.inputs[at]
