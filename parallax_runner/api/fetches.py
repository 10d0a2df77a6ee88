"""Translates fetches and feeds from the single-device graph to a worker's graph, and fetched values back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework.indexed_slices import IndexedSlicesValue
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.ops.variables import PartitionedVariable

from parallax_runner.errors import TrainingError
from parallax_runner.rewrite.distributed_graph import DistributedGraph, LogicalVariable

VARIABLES = ("VarHandleOp", "VariableV2", "Variable")


@dataclass(frozen=True)
class Leaf:
    """A single fetch: the ops of the single-device graph that it needs, and its tensors in each replica.

    `make` turns the values of one replica's tensors into the value of the fetch. If `op` is set, the fetch is an op and
    has no value.
    """

    needs: tuple[str, ...]
    tensors: tuple[tuple[tf.Tensor, ...], ...]
    make: Callable[[Sequence[Any]], Any]
    op: str | None = None


class Translator:
    """Maps names in the single-device graph to ops and tensors in a worker's graph. Create the translator before the
    session."""

    def __init__(self, user_graph: tf.Graph, captured: tf.Graph, distributed: DistributedGraph) -> None:
        self._user_graph, self._captured, self._distributed = user_graph, captured, distributed
        self._variables = [self._reads(prefix) for prefix in distributed.prefixes]
        self._local_reads: dict[tuple[str, str], tf.Tensor] = {}
        self._op_names = {op.name for op in captured.get_operations()}
        for op in captured.get_operations():
            if op.type == "VarHandleOp":
                for prefix in distributed.prefixes:
                    handle = distributed.graph.get_operation_by_name(prefix + op.name)
                    read = tf.raw_ops.ReadVariableOp(resource=handle.outputs[0], dtype=handle.get_attr("dtype"))
                    self._local_reads[prefix, op.name] = read

    def leaf(self, fetch: Any) -> Leaf:
        """Returns the leaf for a single fetch. Raises TypeError or ValueError if `fetch` cannot be fetched."""
        if isinstance(fetch, PartitionedVariable):
            return self._variable(fetch.name.split(":")[0])
        if resource_variable_ops.is_resource_variable(fetch):
            return self._variable(fetch.handle.op.name)
        if isinstance(fetch, tf.Variable):
            return self._variable(fetch.op.name)
        if isinstance(fetch, tf.IndexedSlices):
            parts = [fetch.values, fetch.indices, *([] if fetch.dense_shape is None else [fetch.dense_shape])]
            return self._composite(parts, lambda v: IndexedSlicesValue(v[0], v[1], (*v[2:], None)[0]))
        if isinstance(fetch, tf.SparseTensor):
            return self._composite([fetch.indices, fetch.values, fetch.dense_shape], lambda v: tf.SparseTensorValue(*v))
        if isinstance(fetch, str) and self._is_partitioned(fetch.removesuffix(":0")):
            return self._variable(fetch.removesuffix(":0"))
        return self._leaf_of_element(self.element(fetch))

    def _leaf_of_element(self, element: tf.Tensor | tf.Operation) -> Leaf:
        if isinstance(element, tf.Operation):
            return self._variable(element.name) if element.type in VARIABLES else self._op(element.name)
        if element.op.type in VARIABLES:
            return self._variable(element.op.name)
        if not self._captured.get_operation_by_name(element.op.name).outputs:
            # This is the output of an assignment to a reference variable. Assignments to resource variables have no
            # output.
            return self._op(element.op.name)
        tensors = tuple((self._tensor(prefix, element.name),) for prefix in self._distributed.prefixes)
        return Leaf((element.op.name,), tensors, lambda values: values[0])

    def element(self, named: Any) -> tf.Tensor | tf.Operation:
        """Returns an op or tensor of the script's graph. Raises ValueError, KeyError or TypeError, like
        `tf.Session`."""
        return self._user_graph.as_graph_element(named, allow_tensor=True, allow_operation=True)

    def feeds(self, feed_dict: Mapping[Any, Any] | None) -> dict[tf.Tensor, Any]:
        """Returns the feeds for all replicas. Raises TrainingError if a value is not a list with one element per
        replica."""
        found: dict[tf.Tensor, Any] = {}
        prefixes = self._distributed.prefixes
        for key, values in (feed_dict or {}).items():
            name = getattr(key, "name", key)
            if not isinstance(values, list | tuple) or len(values) != len(prefixes):
                given = f"a list of {len(values)} values" if isinstance(values, list | tuple) else type(values).__name__
                raise TrainingError(
                    f"the feed for «{name}» is {given}; expected a list of {len(prefixes)} values, one for each "
                    "replica of this worker (num_replicas_per_worker)"
                )
            for prefix, value in zip(prefixes, values, strict=True):
                found.update(self._fed(prefix, key, value))
        return found

    def feeds_of_all(self, feed_dict: Mapping[Any, Any] | None) -> dict[tf.Tensor, Any]:
        """Returns feeds that give all replicas the same values."""
        return self.feeds({key: [value] * len(self._distributed.prefixes) for key, value in (feed_dict or {}).items()})

    def _fed(self, prefix: str, key: Any, value: Any) -> dict[tf.Tensor, Any]:
        if isinstance(key, tf.SparseTensor):
            parts = {key.indices: value[0], key.values: value[1], key.dense_shape: value[2]}
        elif isinstance(key, tf.IndexedSlices):
            parts = {key.values: value[0], key.indices: value[1]}
            if key.dense_shape is not None:
                parts[key.dense_shape] = value[2]
        else:
            parts = {key: value}
        return {
            self._tensor(prefix, self._user_graph.as_graph_element(part, allow_operation=False).name): one
            for part, one in parts.items()
        }

    def _tensor(self, prefix: str, name: str) -> tf.Tensor:
        stand_in = self._distributed.stands_for.get(prefix + name)
        return self._distributed.graph.get_tensor_by_name(prefix + name) if stand_in is None else stand_in

    def _op(self, name: str) -> Leaf:
        return Leaf((name,), tuple(() for _ in self._distributed.prefixes), lambda _: None, op=name)

    def _composite(self, parts: Sequence[tf.Tensor], make: Callable[[Sequence[Any]], Any]) -> Leaf:
        leaves = [self.leaf(part) for part in parts]
        tensors = tuple(
            tuple(leaf.tensors[number][0] for leaf in leaves) for number in range(len(self._distributed.prefixes))
        )
        return Leaf(tuple(part.op.name for part in parts), tensors, make)

    def _is_partitioned(self, name: str) -> bool:
        """Returns whether a variable, but no op, has this name. This is the case for variables created with a
        partitioner."""
        return name in self._variables[0] and name not in self._op_names

    def _variable(self, name: str) -> Leaf:
        """Returns the leaf for a variable. The variable's value is assembled from its shards. A single shard can be
        fetched by its own name."""
        if name not in self._variables[0]:
            if ("", name) not in self._local_reads:
                raise ValueError(f"«{name}» is not a variable of the graph passed to parallel_run")
            reads = tuple((self._local_reads[prefix, name],) for prefix in self._distributed.prefixes)
            return Leaf((), reads, lambda values: values[0])
        variable = self._variables[0][name][0]

        def assemble(values: Sequence[Any]) -> Any:
            if len(values) == 1 and variable.pieces[0].shape == variable.shape:
                return values[0]
            whole = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
            for piece, value in zip(variable.pieces, values, strict=True):
                whole[piece.where] = value
            return whole

        return Leaf((), tuple(reads[name][1] for reads in self._variables), assemble)

    def _reads(self, prefix: str) -> dict[str, tuple[LogicalVariable, tuple[tf.Tensor, ...]]]:
        """Returns the ops that read a replica's variables. Each variable has two keys: its logical name, and the name
        that its handle would have if the variable were not sharded."""
        own = [copy for copy in self._distributed.copies if copy.pieces[0].handle.op.name.startswith(prefix)]
        by_name = {variable.name: variable for variable in self._distributed.variables}
        if prefix:
            by_name |= {variable.name: variable for variable in own}
        found = {}
        for name, variable in by_name.items():
            reads = []
            for piece in variable.pieces:
                with tf.device(piece.handle.op.device or None):
                    reads.append(tf.raw_ops.ReadVariableOp(resource=piece.handle, dtype=variable.dtype))
            found[name] = (variable, tuple(reads))
            # If get_partitioner did not divide a variable, the variable's handle is named `…/part_0`.
            found.setdefault(f"{name}/part_0", found[name])
        return found


def flatten(fetches: Any, leaf: Callable[[Any], Leaf], leaves: list[Leaf]) -> Callable[[Sequence[Any]], Any]:
    """Appends the leaves of a nest of lists, tuples, named tuples and dicts to `leaves`. Returns a function that builds
    a nest of the same structure from values."""
    if isinstance(fetches, Mapping):
        return _flatten_mapping(fetches, leaf, leaves)
    if isinstance(fetches, list | tuple) and not isinstance(fetches, tf.IndexedSlices | tf.SparseTensor):
        parts = [flatten(value, leaf, leaves) for value in fetches]
        if hasattr(fetches, "_fields"):
            return lambda values: type(fetches)(*[make(values) for make in parts])
        return lambda values: type(fetches)(make(values) for make in parts)
    number = len(leaves)
    leaves.append(leaf(fetches))
    return lambda values: values[number]


def _flatten_mapping(
    fetches: Mapping[Any, Any], leaf: Callable[[Any], Leaf], leaves: list[Leaf]
) -> Callable[[Sequence[Any]], Any]:
    makers = {key: flatten(value, leaf, leaves) for key, value in fetches.items()}
    kind: Callable[..., Any] = type(fetches) if isinstance(fetches, dict) else dict
    if isinstance(fetches, defaultdict):
        kind = partial(kind, fetches.default_factory)
    return lambda values: kind((key, make(values)) for key, make in makers.items())
