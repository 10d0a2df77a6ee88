"""Ops by which a model makes a list of rows out of gradients' lists, and which can run on each shard's part of them.

That is: lists one behind the other (micro-batches), and the same list without repeated ids, rows of equal ids summed.
Ids of one shard stand in its part in the order in which they stand in the whole, and all rows of an id are in one part;
so the parts of the result are what the whole result has of each shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.update_region.row_list import DistinctList, JoinedList
from parallax_runner.rewrite.update_region.sharded_value import (
    Content,
    Count,
    Ids,
    Places,
    Rows,
    Shape,
    ShardedValue,
    Value,
)

BY_PLACES = frozenset({"UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum"})


def made_contents(op: tf.Operation, inputs: Sequence[Value]) -> list[Content] | None:
    """The contents of an op's outputs if it is such an op; None for any other."""
    if op.type == "ConcatV2":
        return _joined(op, inputs)
    first, *others = inputs
    if not isinstance(first, ShardedValue):
        return None
    content = first.content
    if op.type == "Unique" and isinstance(content, Ids):
        return [Ids(DistinctList(content.of)), Places(content.of)]
    if op.type == "Shape" and isinstance(content, Ids | Rows):
        return [Shape(content.of)]
    if op.type == "Size" and isinstance(content, Ids):
        return [Count(content.of)]
    if isinstance(content, Shape) and _takes_first(op):
        return [Count(content.of)]
    if op.type in BY_PLACES and isinstance(content, Rows):
        distinct = DistinctList(content.of)
        if _contents(others) == [Places(content.of), Count(distinct)] and _of_one_layout(inputs):
            return [Rows(distinct)]
    return None


def _joined(op: tf.Operation, inputs: Sequence[Value]) -> list[Content] | None:
    *lists, _ = inputs
    if not edit.joins_rows(op) or not _of_one_layout(lists):
        return None
    contents = _contents(lists)
    for content_type in (Rows, Ids):
        joined = [content.of for content in contents if isinstance(content, content_type)]
        if len(joined) == len(contents):
            return [content_type(JoinedList(tuple(joined)))]
    return None


def _contents(values: Sequence[Value]) -> list[Content | None]:
    return [value.content if isinstance(value, ShardedValue) else None for value in values]


def _of_one_layout(values: Sequence[Value]) -> bool:
    return len({value.placement.layout for value in values if isinstance(value, ShardedValue)}) == 1


def _takes_first(op: tf.Operation) -> bool:
    """Whether an op takes the first number of a vector."""
    if op.type != "StridedSlice" or op.get_attr("shrink_axis_mask") != 1:
        return False
    return tf.get_static_value(op.inputs[1]) is not None and list(tf.get_static_value(op.inputs[1])) == [0]
