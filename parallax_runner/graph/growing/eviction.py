"""Takes places from keys that steps have not seen for long."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from parallax_runner.graph.growing.insertion import forget
from parallax_runner.graph.growing.key_map import MapHandles, MapShape, enter
from parallax_runner.graph.growing.places import add, cells, give_back, rows_area, waiting_area

# The buckets of so many places are handled at a time, because an eviction needs some 200 bytes for each of them.
PLACES_AT_ONCE = 1 << 18


def end_step(handles: MapHandles, shape: MapShape, buckets: Any, entries: Any, is_step: Any) -> None:
    """Notes that the current step has seen the keys at `entries` (int32 [n], not 0) of `buckets` (int64 [n]). Ends the
    step if `is_step` (bool) is true, and then evicts keys if it is time."""
    before = tf.raw_ops.ReadVariableOp(resource=handles.steps, dtype=tf.int32)
    number = tf.cast(is_step, tf.int32)
    tf.raw_ops.AssignAddVariableOp(resource=handles.steps, value=tf.fill(tf.shape(before), number))
    # All buckets have done the same steps. Of more than 1,024 ranks, some have no bucket.
    step = tf.reduce_max(tf.concat([before, [0]], axis=0)) + 1
    tf.raw_ops.ResourceScatterNdUpdate(
        ref=handles.last_used, indices=cells(buckets, entries - 1), updates=tf.fill(tf.shape(entries), step)
    )
    is_due = is_step & tf.equal(step % shape.every_steps, 0)
    tf.cond(is_due, lambda: _evict(handles, shape, step, tf.size(before)), lambda: tf.constant(0))


def _evict(handles: MapHandles, shape: MapShape, step: Any, buckets: Any) -> Any:
    """Evicts keys from all of the `buckets` of the handles (int32 scalar)."""
    at_once = max(1, PLACES_AT_ONCE // shape.all_places)

    def evict_from_some(first: Any) -> Any:
        some = tf.range(first, tf.minimum(first + at_once, buckets))
        _evict_from(handles, shape, step, tf.cast(some, tf.int64))
        return first + at_once

    tf.while_loop(lambda first: first < buckets, evict_from_some, [tf.constant(0)], parallel_iterations=1)
    return tf.constant(0)


def _evict_from(handles: MapHandles, shape: MapShape, step: Any, buckets: Any) -> None:
    """Evicts keys from consecutive buckets (int64 [n])."""
    last_used = tf.raw_ops.ResourceGather(resource=handles.last_used, indices=buckets, dtype=tf.int32)
    is_taken = last_used > 0
    is_old = is_taken & (last_used <= step - shape.unused_steps)
    before = tf.stack([buckets[0], 0])
    _empty(handles, shape, before + tf.where(is_old))
    _build_index(handles, shape, buckets, before + tf.where(is_taken & ~is_old))


def _empty(handles: MapHandles, shape: MapShape, where: Any) -> None:
    """Makes places (int64 [n, 2]: buckets and places, in ascending order) free."""
    buckets, places = where[:, 0], where[:, 1]
    of_row = places < shape.places
    row_buckets, row_places = tf.boolean_mask(buckets, of_row), tf.boolean_mask(places, of_row)
    add(handles.evicted, row_buckets, 1, tf.int64)
    tf.raw_ops.ResourceScatterNdUpdate(
        ref=handles.last_used,
        indices=cells(row_buckets, row_places),
        updates=tf.zeros(tf.shape(row_places), tf.int32),
    )
    give_back(handles, rows_area(handles, shape), row_buckets, row_places)
    if shape.admits:
        waiting_buckets, waiting_places = tf.boolean_mask(buckets, ~of_row), tf.boolean_mask(places, ~of_row)
        forget(handles, shape, waiting_buckets, waiting_places)
        give_back(handles, waiting_area(handles, shape), waiting_buckets, waiting_places)


def _build_index(handles: MapHandles, shape: MapShape, buckets: Any, where: Any) -> None:
    """Fills the index of buckets with the keys at places (int64 [n, 2]: buckets and places, in ascending order).

    A search stops at a free position, so an entry cannot just be removed. The index of every bucket is built anew, with
    or without a key that leaves: what it contains must not depend on which buckets a rank owns.
    """
    empty = tf.zeros([tf.size(buckets), shape.positions], tf.int32)
    tf.raw_ops.ResourceScatterUpdate(resource=handles.index, indices=buckets, updates=empty)
    keys = tf.raw_ops.ResourceGatherNd(resource=handles.keys, indices=where, dtype=tf.int64)
    entries = tf.cast(where[:, 1], tf.int32) + 1
    enter(handles, shape, keys, where[:, 0], entries, tf.zeros_like(keys))
