"""A fingerprint that shows whether two processes built the same graph, and an outline that locates the first
difference."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.files.regular import open_regular
from parallax_runner.files.whole import write_whole
from parallax_runner.graph import edit

FILE_NAME = "graph_outline.json.gz"
# Length of each digest in an outline: short, but long enough to distinguish two values.
_DIGEST_CHARS = 6
# The op's name, its type, and digests of its device, its inputs and each of its attributes, sorted by name.
OutlineOp = tuple[str, str, tuple[str, ...]]


def fingerprint_of(graph_def: tf.GraphDef) -> str:
    """Returns a hash of ops, edges, constants and functions that is equal for two builds of the same model.

    The hash excludes the seeds of ops. It also excludes the names of shared resources, functions, function arguments,
    custom gradients and Python callbacks, because these names contain a per-process counter.
    """
    return _Digests(graph_def).of_nodes(graph_def.node, {}, [])


class Outline:
    """The ops of a graph with short digests, for locating the first op that differs in another graph."""

    def __init__(self, ops: Iterable[OutlineOp]) -> None:
        self._ops = list(ops)

    @staticmethod
    def of(graph_def: tf.GraphDef) -> Outline:
        """Returns the outline of a graph."""
        digests = _Digests(graph_def)
        return Outline(_outline_op(digests.normal(node, {})) for node in graph_def.node)

    @staticmethod
    def load(path: Path) -> Outline:
        """Loads the file that `save` wrote. Raises OSError or ValueError if the file cannot be read or is
        incomplete."""
        try:
            with open_regular(path) as file:
                text = gzip.decompress(file.read()).decode()
        except (EOFError, zlib.error) as error:
            raise ValueError(f"not a complete gzip file: {error}") from error
        return Outline((name, kind, tuple(digests)) for name, kind, digests in json.loads(text))

    def save(self, path: Path) -> None:
        """Writes the outline for the workers."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, gzip.compress(json.dumps(self._ops).encode()))

    def first_difference(self, graph_def: tf.GraphDef) -> str | None:
        """Describes the first op, in creation order, that differs between `graph_def` and this graph.

        Returns None if the graphs are equal.
        """
        nodes, normal = list(graph_def.node), _Digests(graph_def)
        for number, (there, node) in enumerate(zip(self._ops, nodes, strict=False), 1):
            here = _outline_op(normal.normal(node, {}))
            if here != there:
                return f"op {number} is {_difference(there, here, node)}"
        if len(self._ops) == len(nodes):
            return None
        more = nodes[len(self._ops)].name if len(nodes) > len(self._ops) else self._ops[len(nodes)][0]
        return f"it has {len(nodes)} ops instead of {len(self._ops)}. The first op that only one graph has is «{more}»"


def _difference(there: OutlineOp, here: OutlineOp, node: tf.NodeDef) -> str:
    if there[:2] != here[:2]:
        return f"«{here[0]}» ({here[1]}) in place of «{there[0]}» ({there[1]})"
    parts = ["its device", "its list of inputs", *(f"its attribute «{name}»" for name in sorted(_attributes(node)))]
    differing = [part for part, one, other in zip(parts, there[2], here[2], strict=False) if one != other]
    what = differing[0] if differing and len(there[2]) == len(here[2]) else "its list of attributes"
    return f"«{here[0]}» ({here[1]}): {what} differs{_value(node) if what.endswith('«value»') else ''}"


def _value(node: tf.NodeDef) -> str:
    """Returns the value of a small constant as text, or an empty string for other constants."""
    tensor = node.attr["value"].tensor
    if math.prod(dimension.size for dimension in tensor.tensor_shape.dim) > 4:
        return ""
    value = tf.make_ndarray(tensor)
    return f" (here {value.tolist()!r})" if value.dtype != object else ""


def _outline_op(node: tf.NodeDef) -> OutlineOp:
    serialized = [node.device.encode(), repr(list(node.input)).encode()]
    serialized += [node.attr[name].SerializeToString(deterministic=True) for name in sorted(node.attr)]
    digests = (hashlib.sha256(one).hexdigest()[:_DIGEST_CHARS] for one in serialized)
    return node.name, node.op, tuple(digests)


def _attributes(node: tf.NodeDef) -> set[str]:
    """Returns the names of the attributes that the fingerprint covers."""
    names = set(node.attr) - {"_gradient_op_type"}
    if "seed2" in names:  # a random op; graph/seeds.py gives each rank its own seeds anyway
        names -= {"seed", "seed2"}
    if node.op in edit.PYTHON_TYPES:
        names -= {"token"}
    return names if node.op == "VarHandleOp" else names - {"shared_name"}


class _Digests:
    """The nodes and functions of one graph in a form that is equal for two builds of the same model."""

    def __init__(self, graph_def: tf.GraphDef) -> None:
        self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._found: dict[str, str] = {}

    def of_nodes(self, nodes: Iterable[tf.NodeDef], arguments: Mapping[str, str], returned: list[str]) -> str:
        """Returns a digest of the nodes, sorted by name, and of the `returned` tensors."""
        total = hashlib.sha256(repr(returned).encode())
        for node in sorted(nodes, key=lambda node: node.name):
            total.update(self.normal(node, arguments).SerializeToString(deterministic=True))
        return total.hexdigest()

    def normal(self, node: tf.NodeDef, arguments: Mapping[str, str]) -> tf.NodeDef:
        """Returns a normalized copy of a node, which is the same in any two builds of the same model."""
        copy = tf.NodeDef()
        copy.CopyFrom(node)
        copy.input[:] = [arguments.get(tensor, tensor) for tensor in node.input]
        for name in set(copy.attr) - _attributes(node):
            copy.attr.pop(name)
        for attr in copy.attr.values():
            called = [attr.func] if attr.HasField("func") else attr.list.func
            for function in called:
                function.name = self._of_function(function.name)
        return copy

    def _of_function(self, name: str) -> str:
        if name not in self._functions:
            return name
        if name not in self._found:
            definition = self._functions[name]
            arguments = {argument.name: f"argument_{at}" for at, argument in enumerate(definition.signature.input_arg)}
            returned = [definition.ret[output.name] for output in definition.signature.output_arg]
            returned = [arguments.get(tensor, tensor) for tensor in returned]
            self._found[name] = self.of_nodes(definition.node_def, arguments, returned)
        return self._found[name]
