"""Marks the ops of a growing vocabulary in a graph, so that analysis and the rewrite find them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.growing.key_map import MapHandles, MapShape

ATTRIBUTE = "_parallax_growing"
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_WRITE = "ResourceScatterUpdate"


@dataclass(frozen=True)
class TableMark:
    """What the ops of a table have in common. `seed`, `columns` and `scale` decide the initial rows."""

    table: str
    places: int
    has_overflow_rows: bool
    seed: int
    columns: int
    scale: float

    @property
    def shape(self) -> MapShape:
        """The sizes of the table's map."""
        return MapShape(self.places, self.has_overflow_rows)


@dataclass(frozen=True)
class KeyCall:
    """The op of a graph that maps keys to rows. `write` is the op that writes the initial rows of new keys, or None if
    the op inserts no keys."""

    op: tf.Operation
    table: TableMark
    write: tf.Operation | None

    @property
    def handles(self) -> MapHandles:
        """The resources of the map."""
        return MapHandles(*self.op.inputs[: len(MapHandles._fields)])

    @property
    def keys(self) -> tf.Tensor:
        """The keys (int64 [n])."""
        return self.op.inputs[len(MapHandles._fields)]

    @property
    def rows(self) -> tf.Tensor:
        """The rows of the keys (int64 [n])."""
        return self.op.outputs[0]


def mark(op: Any, table: TableMark) -> None:
    """Marks an op of a graph as an op of this table."""
    content = json.dumps(dataclasses.asdict(table), sort_keys=True).encode()
    op._set_attr(ATTRIBUTE, tf.AttrValue(s=content))


def is_marked(op: tf.Operation) -> bool:
    """Returns whether an op is marked."""
    return is_growing(op.node_def)


def is_growing(node: tf.NodeDef) -> bool:
    """Returns whether the op of a node is marked."""
    return ATTRIBUTE in node.attr


def table_of(node: tf.NodeDef) -> TableMark:
    """Returns the table of a marked op."""
    return TableMark(**json.loads(node.attr[ATTRIBUTE].s))


def key_calls(operations: Iterable[tf.Operation]) -> list[KeyCall]:
    """Returns the marked calls among these ops. A call comes after all calls that it depends on."""
    operations = list(operations)
    writes = {op.inputs[1].op: op for op in _marked(operations, [_WRITE])}
    calls = set(_marked(operations, _CALLS))
    ordered = [op for op in edit.in_order(edit.ancestors(calls)) if op in calls]
    return [KeyCall(op, table_of(op.node_def), writes.get(op)) for op in ordered]


def _marked(operations: Iterable[tf.Operation], types: Collection[str]) -> list[tf.Operation]:
    """Returns the marked ops of these types. Most ops are of others, and the attributes of an op are slow to read."""
    return [op for op in operations if op.type in types and is_marked(op)]
