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
SLOT = "_parallax_growing_slot"  # the initial value, of an op that writes the rows of a slot
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_WRITE = "ResourceScatterUpdate"


@dataclass(frozen=True)
class TableMark:
    """What the ops of a table have in common. `seed`, `columns` and `scale` decide the initial rows, and the other
    numbers are those of `MapShape`."""

    table: str
    places: int
    has_overflow_rows: bool
    seed: int
    columns: int
    scale: float
    min_count: int = 1
    unused_steps: int = 0
    every_steps: int = 0

    @property
    def shape(self) -> MapShape:
        """The sizes and rules of the table's map."""
        return MapShape(self.places, self.has_overflow_rows, self.min_count, self.unused_steps, self.every_steps)


@dataclass(frozen=True)
class SlotWrite:
    """The op that writes the initial value of a slot of the optimizer to the rows of new keys."""

    op: tf.Operation
    initial: float

    @property
    def slot(self) -> tf.Operation:
        """The op of the slot's resource."""
        return self.op.inputs[0].op


@dataclass(frozen=True)
class KeyCall:
    """The op of a graph that maps keys to rows. `write` is the op that writes the initial rows of new keys, or None if
    the op inserts no keys. `slot_writes` write their slots."""

    op: tf.Operation
    table: TableMark
    write: tf.Operation | None
    slot_writes: tuple[SlotWrite, ...] = ()

    @property
    def handles(self) -> MapHandles:
        """The resources of the map."""
        return self.table.shape.handles(self.op.inputs[: self._first])

    @property
    def keys(self) -> tf.Tensor:
        """The keys (int64 [n])."""
        return self.op.inputs[self._first]

    @property
    def rows(self) -> tf.Tensor:
        """The rows of the keys (int64 [n])."""
        return self.op.outputs[0]

    @property
    def writes(self) -> list[tf.Operation]:
        """All ops that write initial values."""
        assert self.write is not None
        return [self.write, *(one.op for one in self.slot_writes)]

    def feed(self, keys: tf.Tensor, times: tf.Tensor, is_step: tf.Tensor) -> None:
        """Gives the op, which inserts keys, other keys, occurrences, and whether it ends a step of the table."""
        for place, tensor in enumerate((keys, times, is_step), start=self._first):
            self.op._update_input(place, tensor)

    @property
    def _first(self) -> int:
        """The place of the first input that is no resource."""
        return len(self.table.shape.variables)


def mark(op: Any, table: TableMark) -> None:
    """Marks an op of a graph as an op of this table."""
    content = json.dumps(dataclasses.asdict(table), sort_keys=True).encode()
    op._set_attr(ATTRIBUTE, tf.AttrValue(s=content))


def mark_slot(op: Any, table: TableMark, initial: float) -> None:
    """Marks an op that writes the initial value of a slot of this table."""
    mark(op, table)
    op._set_attr(SLOT, tf.AttrValue(s=repr(initial).encode()))  # an attribute that is a number has only 32 bits


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
    writes = _marked(operations, [_WRITE])
    of_rows = {op.inputs[1].op: op for op in writes if SLOT not in op.node_def.attr}
    of_slots = [(op.inputs[1].op, _slot_write(op)) for op in writes if SLOT in op.node_def.attr]
    calls = set(_marked(operations, _CALLS))
    ordered = [op for op in edit.in_order(edit.ancestors(calls)) if op in calls]
    return [
        KeyCall(
            op,
            table_of(op.node_def),
            of_rows.get(op),
            tuple(sorted((slot for call, slot in of_slots if call is op), key=lambda one: one.op.name)),
        )
        for op in ordered
    ]


def _slot_write(op: tf.Operation) -> SlotWrite:
    return SlotWrite(op, float(op.get_attr(SLOT)))


def _marked(operations: Iterable[tf.Operation], types: Collection[str]) -> list[tf.Operation]:
    """Returns the marked ops of these types. Most ops are of others, and the attributes of an op are slow to read."""
    return [op for op in operations if op.type in types and is_marked(op)]
