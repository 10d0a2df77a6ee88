"""Places the `shard` transformation of a worker near the source of a `tf.data` graph, so that the worker does not
compute the examples of other workers.

A shard at the end of a pipeline yields every N-th element. If a transformation computes each element from one element
of its input, the shard can precede this transformation. The result is the same, and the transformation computes only
the worker's elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from parallax_runner.graph.tf_data.function_state import FunctionState
from parallax_runner.graph.tf_data.length import element_types, is_in_memory, node_of

# A function that returns the number of elements in a dataset of the graph. The result is negative if this number is
# unknown or infinite.
Cardinality = Callable[[str], int]
# Transformations that yield the elements of their input unchanged.
PASSING = ("PrefetchDataset", "OptionsDataset")


def shard_early(graph_def: Any, rank: int, ranks: int, *, cardinality: Cardinality, keeps_order: bool) -> None:
    """Changes the graph of a dataset so that the dataset yields every `ranks`-th element, starting with element `rank`.

    `keeps_order` is False if the options of the dataset allow parallel maps to change the order.
    """
    (result,) = (node for node in graph_def.node if node.op == "_Retval")
    shards = _Shards(graph_def, ranks, cardinality, keeps_order)
    result.input[0] = shards.placed(result.input[0], rank, is_read_to_end=True)


class _Shards:
    def __init__(self, graph_def: Any, ranks: int, cardinality: Cardinality, keeps_order: bool) -> None:
        self._graph_def, self._ranks = graph_def, ranks
        self._cardinality, self._keeps_order = cardinality, keeps_order
        self._nodes = {node.name: node for node in graph_def.node}
        self._readers = Counter(node_of(name) for node in graph_def.node for name in node.input)
        self._state = FunctionState(graph_def)

    def placed(self, output: str, first: int, *, is_read_to_end: bool) -> str:
        """Returns the output of a dataset that yields every N-th element of `output`, starting with element `first`.

        `first` is less than N. `is_read_to_end` is False if a later transformation can end a pass before all elements
        are read.
        """
        node = self._nodes[node_of(output)]
        if self._readers[node.name] > 1:  # another transformation also reads this node and needs all elements
            return self._shard_of(node, first)
        if node.op == "ZipDataset":
            for number in range(node.attr["N"].i):
                node.input[number] = self.placed(node.input[number], first, is_read_to_end=False)
            return output
        count = self._count(node)
        if node.op == "TakeDataset" and count is not None:
            node.input[1] = self._number(f"{node.name}/count", max(0, -((first - count) // self._ranks)))
            is_read_to_end = False
        elif node.op == "SkipDataset" and count is not None:
            skipped, first = divmod(count + first, self._ranks)
            node.input[1] = self._number(f"{node.name}/count", skipped)
        elif not self._can_follow_shard(node, is_read_to_end=is_read_to_end):
            return self._shard_of(node, first)
        node.input[0] = self.placed(node.input[0], first, is_read_to_end=is_read_to_end)
        return output

    def _can_follow_shard(self, node: Any, *, is_read_to_end: bool) -> bool:
        """Returns whether the node yields the same elements if it reads from the shard instead of the shard from it."""
        if is_read_to_end and is_in_memory(node, self._nodes):
            return True
        return node.op in PASSING or self._is_independent_map(node) or self._is_even_repeat(node)

    def _count(self, node: Any) -> int | None:
        """Returns the number of elements that a `take` or `skip` node takes or skips.

        Returns None for other nodes, and if the number is negative (all elements) or not a constant.
        """
        if node.op not in ("TakeDataset", "SkipDataset"):
            return None
        value = self._constant(node.input[1])
        return None if value is None or value < 0 else int(value)

    def _is_independent_map(self, node: Any) -> bool:
        """Returns whether the node maps each element to one element, in order and independently of other elements."""
        if node.op == "ParallelMapDatasetV2":
            order = node.attr["deterministic"].s
            if order != b"true" and not (order == b"default" and self._keeps_order):
                return False
        elif node.op != "MapDataset":
            return False
        return bool(node.attr["preserve_cardinality"].b) and not self._state.calls_depend(node)

    def _is_even_repeat(self, node: Any) -> bool:
        """Returns whether the node repeats data whose number of elements is known and a multiple of N."""
        if node.op != "RepeatDataset":
            return False
        number = self._cardinality(node.input[0])
        return number > 0 and number % self._ranks == 0

    def _shard_of(self, node: Any, first: int) -> str:
        """Returns the output of a shard that reads from `node`. Two inputs of a `zip` can share this shard."""
        name = f"{node.name}/shard_{first}"
        if name in self._nodes:
            return name
        shard = self._nodes[name] = self._graph_def.node.add(name=name, op="ShardDataset")
        count = self._number(f"{shard.name}/count", self._ranks)
        shard.input.extend([node.name, count, self._number(f"{shard.name}/index", first)])
        types, shapes = element_types(node)
        shard.attr["output_types"].CopyFrom(types)
        shard.attr["output_shapes"].CopyFrom(shapes)
        return name

    def _constant(self, output: str) -> Any:
        """Returns the value of a scalar constant, or None if the output is not a constant."""
        node = self._nodes[node_of(output)]
        return tf.make_ndarray(node.attr["value"].tensor).item() if node.op == "Const" else None

    def _number(self, name: str, value: int) -> str:
        """Adds a constant and returns its output."""
        node = self._graph_def.node.add(name=name, op="Const")
        node.attr["dtype"].type = tf.int64.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
        return name
