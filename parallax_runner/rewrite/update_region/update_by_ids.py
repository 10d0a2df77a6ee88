"""The ids and rows that an update by ids reads on each shard."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import Ids, Rows
from parallax_runner.rewrite.placement import Placement, Shard
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue, Value

if TYPE_CHECKING:
    from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate

# An update by ids has an input with the ids and an input with one row per id. These are the names of the two inputs.
IDS, ROWS = ("indices",), ("grad", "updates")


def inputs_by_ids(
    update: ShardedUpdate, op: tf.Operation, inputs: list[Value], placement: Placement, number: int
) -> dict[int, tf.Tensor]:
    """Returns the ids and rows that the copy of an update by ids reads for shard `number`, by input index."""
    ids_at, rows_at = _input_named(op, IDS), _input_named(op, ROWS)
    ids, rows = inputs[ids_at], inputs[rows_at]
    own_ids = ids if isinstance(ids, ShardedValue) and ids.is_ids_in(placement) else None
    if own_ids is not None:
        own_rows = _rows_beside(own_ids, rows, number)
        if own_rows is not None:
            return {ids_at: own_ids.parts[number], rows_at: own_rows}
    all_ids = update.whole(ids) if isinstance(ids, ShardedValue) else ids
    all_rows = update.whole(rows) if isinstance(rows, ShardedValue) else rows
    flat_ids = tf.reshape(all_ids, [-1])  # ids from an accumulator have no known rank
    is_here, places = in_shard(flat_ids, placement.shards[number])
    if all_rows.shape.rank != 0:
        row_shape = [dim.size for dim in op.inputs[0].op.get_attr("shape").dim[1:]]
        all_rows = tf.boolean_mask(tf.reshape(all_rows, [-1, *row_shape]), is_here)
    own_rows = update.sent(all_rows, placement)
    if own_ids is not None:
        return {ids_at: own_ids.parts[number], rows_at: own_rows}
    return {ids_at: update.sent(tf.cast(places, all_ids.dtype), placement), rows_at: own_rows}


def _input_named(op: tf.Operation, names: Collection[str]) -> int:
    """Returns the index of the only input of an op that has one of these names."""
    (found,) = (at for at, argument in enumerate(op.op_def.input_arg) if argument.name in names)
    return found


def _rows_beside(own_ids: ShardedValue, rows: Value, number: int) -> tf.Tensor | None:
    """Returns the rows for the ids of shard `number`, or None if the rows are not sharded like the ids. One scalar
    stands for all rows."""
    if isinstance(rows, ShardedValue):
        return rows.parts[number] if _is_beside(rows, own_ids) else None
    return rows if rows.shape.rank == 0 else None


def _is_beside(rows: ShardedValue, ids: ShardedValue) -> bool:
    """Returns whether each part of `ids` contains the ids of the corresponding part of `rows`."""
    assert isinstance(ids.content, Ids)
    return rows.placement.layout == ids.placement.layout and rows.content == Rows(ids.content.of)


def in_shard(ids: tf.Tensor, shard: Shard) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns which of `ids` [n] belong to a shard's rows, and the positions of these rows in the shard."""
    is_here = tf.equal(ids % shard.step, shard.offset)
    return is_here, shard.places_of(tf.boolean_mask(ids, is_here))
