"""Ops by which a model makes a list of rows out of gradients' lists, and which can run on each shard's part of them.

That is: lists one behind the other (micro-batches), and the same list without repeated ids, rows of equal ids summed.
Ids of one shard stand in its part in the order in which they stand in the whole, and all rows of an id are in one part;
so the parts of the result are what the whole result has of each shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.update_region.sharded_value import Kind, ShardedValue

Value: TypeAlias = tf.Tensor | ShardedValue

BY_PLACES = frozenset({"UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum"})


def made_kinds(op: tf.Operation, inputs: Sequence[Value]) -> list[Kind] | None:
    """The kinds of an op's outputs if it is such an op; None for any other."""
    if op.type == "ConcatV2":
        return _joined(op, inputs)
    first, *others = inputs
    if not isinstance(first, ShardedValue):
        return None
    kind = first.kind
    if op.type == "Unique" and kind.what == "ids":
        return [Kind("ids", _distinct(kind)), kind.as_("places")]
    if op.type == "Shape" and kind.what in ("ids", "rows"):
        return [kind.as_("shape")]
    if (op.type == "Size" and kind.what == "ids") or (kind.what == "shape" and _takes_first(op)):
        return [kind.as_("count")]
    if op.type in BY_PLACES and kind.what == "rows":
        wanted = [kind.as_("places"), Kind("count", _distinct(kind))]
        if _kinds(others) == wanted and _of_one_layout(inputs):
            return [Kind("rows", _distinct(kind))]
    return None


def _joined(op: tf.Operation, inputs: Sequence[Value]) -> list[Kind] | None:
    *lists, _ = inputs
    kinds = _kinds(lists)
    whats = {kind.what for kind in kinds if kind is not None}
    if not edit.joins_rows(op) or None in kinds or whats not in ({"rows"}, {"ids"}) or not _of_one_layout(lists):
        return None
    return [Kind(whats.pop(), f"({', '.join(kind.of for kind in kinds if kind is not None)})")]


def _distinct(kind: Kind) -> str:
    return f"distinct {kind.of}"


def _kinds(values: Sequence[Value]) -> list[Kind | None]:
    return [value.kind if isinstance(value, ShardedValue) else None for value in values]


def _of_one_layout(values: Sequence[Value]) -> bool:
    return len({value.layout for value in values if isinstance(value, ShardedValue)}) == 1


def _takes_first(op: tf.Operation) -> bool:
    """Whether an op takes the first number of a vector."""
    if op.type != "StridedSlice" or op.get_attr("shrink_axis_mask") != 1:
        return False
    return tf.get_static_value(op.inputs[1]) is not None and list(tf.get_static_value(op.inputs[1])) == [0]
