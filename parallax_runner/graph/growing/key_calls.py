"""The graph functions that map keys to rows. Each is one op in a graph, so the rewrite can replace the op.

The row of a key is the number of its bucket times the places of a bucket, plus its place. After these rows, a table can
have one overflow row for each bucket. The numbers do not depend on how many ranks own the buckets.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from parallax_runner.graph.growing.hashed_keys import BUCKETS, buckets_of
from parallax_runner.graph.growing.key_map import MapHandles, MapShape, insert, is_bucket_full, search

UNKNOWN = -1  # the row of a key that is not in the map


class Inserted(NamedTuple):
    """The rows of keys (int64 [n]), and the rows and keys that this call added to the map (int64 [m])."""

    rows: Any
    new_rows: Any
    new_keys: Any


def rows_with_inserts(handles: MapHandles, keys: Any, shape: MapShape, *, ranks: int = 1) -> Inserted:
    """Returns the rows of keys (int64 [n]), and inserts those that are not in the map.

    With several `ranks`, `handles` have the buckets of one of them, which owns the buckets of all keys: bucket b is
    number b div ranks of rank b mod ranks.
    """
    return Inserted(*_inserting(shape, ranks)(*handles, keys))


def rows_of_known(handles: MapHandles, keys: Any, shape: MapShape, *, ranks: int = 1) -> Any:
    """Returns the rows of keys (int64 [n]), and `UNKNOWN` for a key that is not in the map. The map does not change.

    `ranks` has the same meaning as in `rows_with_inserts`.
    """
    return _finding(shape, ranks)(*handles, keys)


def table_rows(shape: MapShape) -> int:
    """Returns the number of rows of the table of a map."""
    return BUCKETS * (shape.places + shape.has_overflow_rows)


def _signature() -> list[Any]:
    resources = [tf.TensorSpec([], tf.resource) for _ in MapHandles._fields]
    return [*resources, tf.TensorSpec([None], tf.int64)]


@functools.cache
def _inserting(shape: MapShape, ranks: int) -> Any:
    def parallax_insert_keys(keys: Any, index: Any, fill: Any, overflow: Any, given: Any) -> tuple[Any, Any, Any]:
        handles = _with_shapes(MapHandles(keys, index, fill, overflow), shape)
        distinct, number_of = _ascending(given)
        buckets = buckets_of(distinct)
        found = search(handles, shape, distinct, buckets // ranks)
        is_new = tf.equal(found.entries, 0)
        new_keys, new_buckets = (tf.boolean_mask(each, is_new) for each in (distinct, buckets))
        entered = insert(handles, shape, new_keys, new_buckets // ranks, tf.boolean_mask(found.probes, is_new))
        entries = tf.tensor_scatter_nd_update(found.entries, tf.where(is_new), entered)
        rows = _rows(shape, buckets, entries, _overflow_rows(shape, buckets))
        has_row = entered > 0
        added = _rows(shape, new_buckets, entered, tf.zeros_like(new_buckets))
        return tf.gather(rows, number_of), tf.boolean_mask(added, has_row), tf.boolean_mask(new_keys, has_row)

    return _concrete(parallax_insert_keys)


@functools.cache
def _finding(shape: MapShape, ranks: int) -> Any:
    def parallax_find_keys(keys: Any, index: Any, fill: Any, overflow: Any, given: Any) -> Any:
        handles = _with_shapes(MapHandles(keys, index, fill, overflow), shape)
        buckets = buckets_of(given)
        found = search(handles, shape, given, buckets // ranks)
        otherwise = tf.fill(tf.shape(buckets), tf.constant(UNKNOWN, tf.int64))
        if shape.has_overflow_rows:
            is_full = is_bucket_full(handles, shape, buckets // ranks)
            otherwise = tf.where(is_full, _overflow_rows(shape, buckets), otherwise)
        return _rows(shape, buckets, found.entries, otherwise)

    return _concrete(parallax_find_keys)


def _concrete(function: Any) -> Any:
    """Returns the traced function. A trace of a training step calls it in one op, although it inlines functions."""
    with tf.init_scope():
        return tf.function(function, input_signature=_signature(), autograph=False).get_concrete_function()


def _with_shapes(handles: MapHandles, shape: MapShape) -> MapHandles:
    """Tells TensorFlow what the resources contain: an argument of a function does not."""
    dtypes = MapHandles(tf.int64, tf.int32, tf.int32, tf.int64)
    widths = MapHandles([shape.places], [shape.positions], [], [])
    for handle, dtype, width in zip(handles, dtypes, widths, strict=True):
        described = handle_data_util.create_handle_data(tf.TensorShape([None, *width]), dtype)
        handle_data_util.set_handle_data(handle, described)
    return handles


def _rows(shape: MapShape, buckets: Any, entries: Any, otherwise: Any) -> Any:
    rows = buckets * shape.places + tf.cast(entries, tf.int64) - 1
    return tf.where(entries > 0, rows, otherwise)


def _overflow_rows(shape: MapShape, buckets: Any) -> Any:
    return BUCKETS * shape.places + buckets


def _ascending(keys: Any) -> tuple[Any, Any]:
    """Returns the distinct keys in ascending order, and the position of each key among them (int32 [n])."""
    distinct, number_of = tf.unique(keys)
    order = tf.argsort(distinct)
    return tf.gather(distinct, order), tf.gather(tf.math.invert_permutation(order), number_of)
