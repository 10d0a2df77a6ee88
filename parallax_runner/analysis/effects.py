"""The side effects of an op: writes and random draws, including those inside the functions that the op calls (branches,
loops, `tf.function`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import function_pb2

from parallax_runner.graph import edit, seeds


@dataclass
class Effects:
    """The side effects of the ops in one graph. `functions` contains the graph's functions by name."""

    functions: dict[str, function_pb2.FunctionDef] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: tf.Graph) -> Effects:
        """Returns the effects of the ops in a graph."""
        return cls({one.signature.name: one for one in graph.as_graph_def().library.function})

    def written_by(self, op: tf.Operation) -> list[str]:
        """Returns the names of the variables that an op writes, or that it may write inside a function."""
        handles = [handle.name for handle in map(edit.handle_behind, op.inputs) if handle is not None]
        if edit.is_write(op):
            return handles[:1]
        return handles if handles and any(edit.writes(node.op) for node in self._inside(op.node_def)) else []

    def called_by(self, node: tf.NodeDef) -> list[str]:
        """Returns the types of all ops in the functions that an op calls."""
        return [inner.op for inner in self._inside(node)]

    def draws(self, op: tf.Operation) -> bool:
        """Returns whether a function that an op calls contains a random op."""
        return bool(self.functions) and any(seeds.draws(node) for node in self._inside(op.node_def))

    def _inside(self, node: tf.NodeDef, above: frozenset[str] = frozenset()) -> Iterator[tf.NodeDef]:
        called = {value.func.name for value in node.attr.values() if value.HasField("func")}
        called |= {func.name for value in node.attr.values() for func in value.list.func}
        called |= {node.op}  # an op's type can be the name of a function
        for name in sorted(called & self.functions.keys() - above):
            for inner in self.functions[name].node_def:
                yield inner
                yield from self._inside(inner, above | {name})
