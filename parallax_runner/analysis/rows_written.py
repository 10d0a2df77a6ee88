"""Determines which rows of a variable an update writes: the rows that a step touches, or all rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.variable_info import RowsWritten
from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import Gradient

# The beginnings of the types of ops that write rows by their ids.
BY_IDS = ("ResourceScatter", "ResourceSparseApply")
# An op of this type writes elements that are addressed by several indices.
BY_PLACE = "ResourceScatterNd"


def rows_written(
    graph: tf.Graph,
    region: Collection[tf.Operation],
    table: Iterable[str],
    gradients: Iterable[Gradient],
    *,
    reads: frozenset[str],
) -> RowsWritten:
    """Returns TOUCHED if the update region writes a variable and its slots (`table`) only at ids from its sparse
    gradients, otherwise ALL.

    Any op that takes the handle and is not in `reads`, such as a branch, counts as a write.
    """
    ids = frozenset(one.indices for one in gradients if one.indices)
    for name in table:
        for op in graph.get_operation_by_name(name).outputs[0].consumers():
            if op in region and op.type not in reads and not _is_by(op, ids):
                return RowsWritten.ALL
    return RowsWritten.TOUCHED


def _is_by(op: tf.Operation, ids: frozenset[str]) -> bool:
    """Returns whether an op writes at ids that come from the tensors named in `ids`."""
    if not op.type.startswith(BY_IDS) or op.type.startswith(BY_PLACE):
        return False
    names = [argument.name for argument in op.op_def.input_arg]
    given = op.inputs[names.index("indices")]
    behind = edit.ancestors([] if given.name in ids else [given.op], stop_at=ids, control=False)
    return bool(ids & {given.name, *(tensor.name for source in behind for tensor in source.inputs)})
