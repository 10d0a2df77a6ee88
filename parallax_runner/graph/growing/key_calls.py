"""The graph functions that map keys to rows. Each is one op in a graph, so the rewrite can replace the op.

The row of a key is the number of its bucket times the rows of a bucket, plus its place. After these rows, a table can
have one overflow row for each bucket. The numbers do not depend on how many ranks own the buckets.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from parallax_runner.graph.growing.eviction import end_step
from parallax_runner.graph.growing.hashed_keys import BUCKETS, buckets_of
from parallax_runner.graph.growing.insertion import (
    Seen,
    full_check,
    has_row,
    placed,
    reaches_min_count,
    store,
)
from parallax_runner.graph.growing.key_map import MapHandles, MapShape, search
from parallax_runner.graph.growing.places import is_bucket_full

UNKNOWN = -1  # the row of a key that has none


class Inserted(NamedTuple):
    """The rows of keys (int64 [n]), UNKNOWN for a key that waits for a row, and the rows and keys that this call added
    to the map (int64 [m])."""

    rows: Any
    new_rows: Any
    new_keys: Any


def rows_with_inserts(
    handles: MapHandles, keys: Any, shape: MapShape, *, ranks: int = 1, times: Any = None
) -> Inserted:
    """Returns the rows of keys (int64 [n]), and inserts those that are not in the map. The call is a step of the table,
    after which keys may leave.

    `times` (int64 [n]) tells how often each of `keys` occurs, once by default. With several `ranks`, `handles` have the
    buckets of one of them, which owns the buckets of all keys: bucket b is number b div ranks of rank b mod ranks.
    """
    # The call itself must have the control inputs that the caller sets, because the exchange hands them over.
    # TensorFlow leaves them out if an argument has them.
    with tf.control_dependencies(None):
        times = tf.ones_like(keys) if times is None else times
        is_step = tf.constant(True)
    return Inserted(*_inserting(shape, ranks)(*handles.given, keys, times, is_step))


def rows_of_known(handles: MapHandles, keys: Any, shape: MapShape, *, ranks: int = 1) -> Any:
    """Returns the rows of keys (int64 [n]), and `UNKNOWN` for a key without a row. The map does not change.

    `ranks` has the same meaning as in `rows_with_inserts`.
    """
    return _finding(shape, ranks)(*handles.given, keys)


def table_rows(shape: MapShape) -> int:
    """Returns the number of rows of the table of a map."""
    return BUCKETS * (shape.places + shape.has_overflow_rows)


@functools.cache
def _inserting(shape: MapShape, ranks: int) -> Any:
    def parallax_insert_keys(*given: Any) -> tuple[Any, Any, Any]:
        *resources, keys, times, is_step = given
        handles = _with_shapes(shape.handles(resources), shape)
        distinct, number_of = _ascending(keys)
        buckets = buckets_of(distinct)
        own = buckets // ranks
        all_times = tf.math.unsorted_segment_sum(times, number_of, tf.size(distinct))
        seen = Seen(distinct, own, all_times, search(handles, shape, distinct, own))
        made = placed(handles, shape, seen)
        with tf.control_dependencies(full_check(shape, seen, made)):
            entries = store(handles, shape, seen, made)
            rows = _rows(handles, shape, buckets, own, entries)
            if shape.evicts:
                is_used = (seen.times > 0) & (entries > 0)
                end_step(handles, shape, tf.boolean_mask(own, is_used), tf.boolean_mask(entries, is_used), is_step)
        added, new_keys = tf.boolean_mask(rows, made.gets_row), tf.boolean_mask(distinct, made.gets_row)
        return tf.gather(rows, number_of), added, new_keys

    return _concrete(parallax_insert_keys, shape, [*_keys_and_times(), tf.TensorSpec([], tf.bool)])


@functools.cache
def _finding(shape: MapShape, ranks: int) -> Any:
    def parallax_find_keys(*given: Any) -> Any:
        *resources, keys = given
        handles = _with_shapes(shape.handles(resources), shape)
        buckets = buckets_of(keys)
        found = search(handles, shape, keys, buckets // ranks)
        return _rows(handles, shape, buckets, buckets // ranks, found.entries)

    return _concrete(parallax_find_keys, shape, _keys_and_times()[:1])


def _keys_and_times() -> list[Any]:
    return [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)]


def _concrete(function: Any, shape: MapShape, given: list[Any]) -> Any:
    """Returns the traced function. A trace of a training step calls it in one op, although it inlines functions."""
    signature = [*[tf.TensorSpec([], tf.resource) for _ in shape.variables], *given]
    with tf.init_scope():
        return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()


def _with_shapes(handles: MapHandles, shape: MapShape) -> MapHandles:
    """Tells TensorFlow what the resources contain: an argument of a function does not."""
    for handle, variable in zip(handles.given, shape.variables.values(), strict=True):
        content = tf.TensorShape([None, *variable.width]), tf.as_dtype(variable.dtype)
        handle_data_util.set_handle_data(handle, handle_data_util.create_handle_data(*content))
    return handles


def _rows(handles: MapHandles, shape: MapShape, buckets: Any, own: Any, entries: Any) -> Any:
    """Returns the rows of entries (int32 [n]). `own` are the numbers of `buckets` among those of the handles."""
    rows = buckets * shape.places + tf.cast(entries, tf.int64) - 1
    otherwise = tf.fill(tf.shape(buckets), tf.constant(UNKNOWN, tf.int64))
    if shape.has_overflow_rows:
        overflow_rows = BUCKETS * shape.places + buckets
        otherwise = tf.where(_shares(handles, shape, own, entries), overflow_rows, otherwise)
    return tf.where(has_row(shape, entries), rows, otherwise)


def _shares(handles: MapHandles, shape: MapShape, own: Any, entries: Any) -> Any:
    """Returns whether a key without a row of its own has the overflow row of its bucket (bool [n])."""
    if shape.admits:
        return reaches_min_count(handles, shape, own, entries)
    return is_bucket_full(handles, shape, own)


def _ascending(keys: Any) -> tuple[Any, Any]:
    """Returns the distinct keys in ascending order, and the position of each key among them (int32 [n])."""
    distinct, number_of = tf.unique(keys)
    order = tf.argsort(distinct)
    return tf.gather(distinct, order), tf.gather(tf.math.invert_permutation(order), number_of)
