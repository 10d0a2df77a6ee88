"""The two branches of a functional `If`, as far as another stage must look into them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import function_pb2

# Of graphs that were asked for, since writing one out takes long.
_functions: weakref.WeakKeyDictionary[tf.Graph, dict[str, function_pb2.FunctionDef]] = weakref.WeakKeyDictionary()

IF_TYPES = frozenset({"If", "StatelessIf"})


@dataclass
class Branch:
    """A branch's function; arguments are counted as the inputs of the `If` are, whose first is the condition."""

    definition: function_pb2.FunctionDef
    nodes: dict[str, tf.NodeDef] = field(init=False)
    arguments: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.definition.node_def}
        self.arguments = {arg.name: at for at, arg in enumerate(self.definition.signature.input_arg, start=1)}

    def result(self, number: int) -> str:
        """What the branch returns as output `number`: an argument, or an output of a node."""
        return self.source(self.definition.ret[self.definition.signature.output_arg[number].name])

    def source(self, tensor: str) -> str:
        """The same tensor before it was handed on."""
        node = self.node(tensor)
        return self.source(node.input[0]) if node is not None and node.op == "Identity" else tensor

    def node(self, tensor: str) -> tf.NodeDef | None:
        """The node that makes a tensor; None for an argument."""
        return self.nodes.get(tensor.split(":")[0])

    def inputs(self, tensor: str) -> list[str]:
        """What the node reads that makes a tensor, before it was handed on; nothing for an argument."""
        node = self.node(tensor)
        return [] if node is None else [self.source(each) for each in node.input if not each.startswith("^")]

    def type_of(self, tensor: str) -> str:
        """The type of the node that makes a tensor; empty for an argument."""
        node = self.node(tensor)
        return "" if node is None else node.op


def branches(op: tf.Operation) -> tuple[Branch, Branch]:
    """What a functional `If` runs if its condition holds, and if it does not."""
    names = [op.get_attr(f"{name}_branch").name for name in ("then", "else")]
    functions = _functions.get(op.graph, {})
    if not functions.keys() >= set(names):
        library = op.graph.as_graph_def().library
        functions = _functions[op.graph] = {function.signature.name: function for function in library.function}
    then, other = (functions[name] for name in names)
    return Branch(then), Branch(other)


def handed_through(tensor: tf.Tensor) -> tf.Tensor | None:
    """The input that an output of an `If` is, whichever branch runs; None where it is none."""
    if tensor.op.type not in IF_TYPES:
        return None
    sources = {branch.arguments.get(branch.result(tensor.value_index)) for branch in branches(tensor.op)}
    (at, *others) = sources
    return None if others or at is None else tensor.op.inputs[at]
