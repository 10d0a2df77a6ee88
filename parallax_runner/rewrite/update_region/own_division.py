"""Creates the inputs for a shard's copy of an op that divides slices as Keras does
(analysis/update_region/slice_division.py)."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.slice_division import SliceDivision
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue, Value


def own_inputs(division: SliceDivision, inputs: Sequence[Value], number: int) -> dict[int, tf.Tensor]:
    """Returns the inputs of the copy for shard `number`, by input index.

    The shard's own rows determine the branch that the copy takes. The branch that Keras takes for a divisor with zeros
    fails if the slices have no rows, and a shard's slices may have no rows even if the whole tensor has some. In this
    case, a row of zeros is added to the slices. This row gets the id of a row whose result is 0 / 0 anyway.
    """
    rows, ids, is_zero = (_part(inputs[at], number) for at in (division.rows, division.ids, division.is_zero))
    value, shape = inputs[division.rows], inputs[division.shape]
    assert isinstance(value, ShardedValue) and isinstance(shape, tf.Tensor)
    shard = value.placement.shards[number]
    with tf.device(shard.device), tf.name_scope("own_division/"):
        stands_in = tf.reshape(tf.where(is_zero), [-1])[: tf.cast(tf.equal(tf.size(ids), 0), tf.int32)]
        row_shape = tf.concat([tf.shape(stands_in), tf.shape(rows)[1:]], axis=0)
        return {
            0: tf.reduce_any(is_zero),
            division.shape: tf.concat([tf.constant([shard.rows], shape.dtype), shape[1:]], axis=0),
            division.ids: tf.concat([ids, tf.cast(stands_in, ids.dtype)], axis=0),
            division.rows: tf.concat([rows, tf.zeros(row_shape, rows.dtype)], axis=0),
        }


def _part(value: Value, number: int) -> tf.Tensor:
    assert isinstance(value, ShardedValue)
    return value.parts[number]
