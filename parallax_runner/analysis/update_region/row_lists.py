"""Ops that derive a list of rows from the lists of gradients, and that can run on each shard's part of these lists.

These ops concatenate lists (micro-batches), or sum the rows with equal ids into a list without repeated ids. Within
each shard's part, ids are in the same order as in the whole list, and all rows with the same id are in the same part.
The result for a part is therefore the shard's part of the whole result.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import Content, Count, Ids, Places, Rows, Shape
from parallax_runner.analysis.update_region.row_list import DistinctList, JoinedList
from parallax_runner.graph import edit

BY_PLACES = frozenset({"UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum"})


def made_contents(op: tf.Operation, inputs: Sequence[Content | None]) -> list[Content] | None:
    """Returns the contents of the op's outputs if the op can run on each shard's part of a list, otherwise None.

    All inputs with content must have the same layout.
    """
    if op.type == "ConcatV2":
        return _joined(op, inputs)
    first, *others = inputs
    if isinstance(first, Ids):
        return _made_of_ids(op, first)
    if isinstance(first, Rows):
        return _made_of_rows(op, first, others)
    if isinstance(first, Shape):
        return _made_of_shape(op, first)
    return None


def _made_of_ids(op: tf.Operation, ids: Ids) -> list[Content] | None:
    made: dict[str, list[Content]] = {
        "Unique": [Ids(DistinctList(ids.of)), Places(ids.of)],
        "Shape": [Shape(ids.of)],
        "Size": [Count(ids.of)],
    }
    return made.get(op.type)


def _made_of_rows(op: tf.Operation, rows: Rows, others: Sequence[Content | None]) -> list[Content] | None:
    if op.type == "Shape":
        return [Shape(rows.of)]
    distinct = DistinctList(rows.of)
    if op.type in BY_PLACES and others == [Places(rows.of), Count(distinct)]:
        return [Rows(distinct)]
    return None


def _made_of_shape(op: tf.Operation, shape: Shape) -> list[Content] | None:
    if _takes_first(op):
        return [Count(shape.of)]
    return [Rows(shape.of)] if op.type == "Fill" else None


def _joined(op: tf.Operation, inputs: Sequence[Content | None]) -> list[Content] | None:
    *lists, _ = inputs
    if not edit.joins_rows(op):
        return None
    for content_type in (Rows, Ids):
        joined = [content.of for content in lists if isinstance(content, content_type)]
        if len(joined) == len(lists):
            return [content_type(JoinedList(tuple(joined)))]
    return None


def _takes_first(op: tf.Operation) -> bool:
    """Returns whether an op takes the first element of a vector."""
    if op.type != "StridedSlice" or op.get_attr("shrink_axis_mask") != 1:
        return False
    return tf.get_static_value(op.inputs[1]) is not None and list(tf.get_static_value(op.inputs[1])) == [0]
