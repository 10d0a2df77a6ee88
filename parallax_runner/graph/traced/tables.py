"""Adds the static lookup tables that traced steps use, such as those of Keras' StringLookup and IntegerLookup, to a
graph."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.graph.tables import AddedTable, add_table, content_of, is_table


def add_tables(captures: Iterable[tuple[Any, Any]], variables: Container[int]) -> dict[int, AddedTable]:
    """Adds each table among the captures of traced steps to the default graph, once.

    `captures` contains pairs of an eager tensor and the placeholder that stands for it in its trace. `variables`
    contains the ids of the handles of variables. Returns a dict from the id of each table's handle to the new table.

    Raises CaptureError if a table is mutable or has no content.
    """
    found: dict[int, AddedTable] = {}
    for outer, inner in captures:
        is_known = outer.dtype != tf.resource or outer._id in variables or outer._id in found
        if is_known or not is_table(outer):
            continue
        users = sorted(op.name for op in inner.consumers())
        content = content_of(outer, users[0] if users else inner.op.name)
        found[outer._id] = add_table(content, f"lookup_tables/{len(found)}")
    return found
