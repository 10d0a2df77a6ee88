"""Finds keys in a map that consists of variables, and inserts keys.

The map has `BUCKETS` buckets. A bucket has a fixed number of places, which are taken in the order in which keys arrive.
`keys` (int64 [buckets, places]) contains the key at each place, `fill` (int32 [buckets]) the number of taken places,
and `overflow` (int64 [buckets]) how often a step saw a distinct key for which its full bucket has no place.

Tensors are compared with `tf.equal`, because workers run TensorFlow 1's behavior, where `==` compares objects.

`index` (int32 [buckets, positions]) finds the place of a key: an entry is a place plus one, or 0. A search begins at a
position that the key's hash chooses, and visits all positions (triangular numbers modulo a power of two) until it meets
the key or a 0. At least half of the positions are 0, so a search is short.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from parallax_runner.graph.growing.hashed_keys import starts_of


class MapHandles(NamedTuple):
    """The resources of the four variables of a map, or of the buckets that a rank owns."""

    keys: Any
    index: Any
    fill: Any
    overflow: Any


class MapShape(NamedTuple):
    """The sizes of a map. `has_overflow_rows` says what becomes of a key whose bucket is full: it takes the overflow
    row of its bucket, or the step fails."""

    places: int
    has_overflow_rows: bool

    @property
    def positions(self) -> int:
        """The number of positions of a bucket in the index: a power of two, at least twice the number of places."""
        return 1 << (2 * self.places - 1).bit_length()


class Search(NamedTuple):
    """The result of a search for keys. `entries` (int32 [n]) are places plus one, or 0 for a key that is not in the
    map. `probes` (int64 [n]) is the number of positions that were visited before the one where the search ended."""

    entries: Any
    probes: Any


def search(handles: MapHandles, shape: MapShape, keys: Any, buckets: Any) -> Search:
    """Searches for keys (int64 [n]). `buckets` (int64 [n]) are their buckets among those of `handles`."""
    starts = starts_of(keys, shape.positions)
    count = tf.size(keys, tf.int64)

    def visit(probe: Any, active: Any, entries: Any, probes: Any) -> tuple[Any, ...]:
        bucket = tf.gather(buckets, active)
        at = _position(tf.gather(starts, active), probe, shape)
        entry = _entries_at(handles, bucket, at)
        is_key = tf.equal(_keys_at(handles, bucket, entry), tf.gather(keys, active))
        is_end = tf.equal(entry, 0) | is_key
        places = tf.boolean_mask(active, is_end)[:, tf.newaxis]
        entries = tf.tensor_scatter_nd_update(entries, places, tf.boolean_mask(entry, is_end))
        probes = tf.tensor_scatter_nd_update(probes, places, tf.fill([tf.shape(places)[0]], probe))
        return probe + 1, tf.boolean_mask(active, ~is_end), entries, probes

    _, _, entries, probes = tf.while_loop(
        lambda probe, active, entries, probes: tf.size(active) > 0,
        visit,
        [tf.constant(0, tf.int64), tf.range(count), tf.zeros([count], tf.int32), tf.zeros([count], tf.int64)],
        shape_invariants=[tf.TensorShape([]), *[tf.TensorShape([None])] * 3],
        parallel_iterations=1,
    )
    return Search(entries, probes)


def insert(handles: MapHandles, shape: MapShape, keys: Any, buckets: Any, probes: Any) -> Any:
    """Inserts distinct keys that are not in the map, in ascending order (int64 [n]).

    Returns their entries (int32 [n]), or 0 for a key whose bucket is full. `probes` comes from the search for the keys.
    Raises InvalidArgumentError before the map changes if a bucket is full and there are no overflow rows.
    """
    places = tf.gather(_fill(handles), buckets) + _numbers_within(buckets)
    has_place = places < shape.places
    lost = tf.boolean_mask(tf.stack([keys, buckets], axis=1), ~has_place)
    checks = [] if shape.has_overflow_rows else [_refusal(lost[:, 0], shape)]
    # Every write itself waits for the check. TensorFlow simplifies the values that it writes, and then an earlier op
    # that waits can disappear.
    with tf.control_dependencies(checks):
        _count(handles.overflow, lost[:, 1], tf.int64)
        _store(handles, shape, *(tf.boolean_mask(each, has_place) for each in (keys, buckets, places, probes)))
    return tf.where(has_place, places + 1, tf.zeros_like(places))


def _store(handles: MapHandles, shape: MapShape, keys: Any, buckets: Any, places: Any, probes: Any) -> None:
    """Stores keys at free places of their buckets."""
    where = tf.stack([buckets, tf.cast(places, tf.int64)], axis=1)
    tf.raw_ops.ResourceScatterNdUpdate(ref=handles.keys, indices=where, updates=keys)
    _count(handles.fill, buckets, tf.int32)
    _enter(handles, shape, keys, buckets, places + 1, probes)


def _count(counter: Any, buckets: Any, dtype: Any) -> None:
    """Adds 1 for each of the buckets."""
    ones = tf.ones(tf.shape(buckets), dtype)
    tf.raw_ops.ResourceScatterAdd(resource=counter, indices=buckets, updates=ones)


def is_bucket_full(handles: MapHandles, shape: MapShape, buckets: Any) -> Any:
    """Returns whether each bucket has no free place (bool [n])."""
    return tf.gather(_fill(handles), buckets) >= shape.places


def _enter(handles: MapHandles, shape: MapShape, keys: Any, buckets: Any, entries: Any, probes: Any) -> None:
    """Writes new entries to the index. In each round, every key that waits tries the next position of its search. If
    several keys try the same free position, the smallest key takes it."""
    starts = starts_of(keys, shape.positions)

    def attempt(active: Any, probes: Any) -> tuple[Any, Any]:
        bucket = tf.gather(buckets, active)
        at = _position(tf.gather(starts, active), probes, shape)
        is_free = tf.equal(_entries_at(handles, bucket, at), 0)
        wins = is_free & _is_first(bucket * shape.positions + at)
        where = tf.boolean_mask(tf.stack([bucket, at], axis=1), wins)
        written = tf.raw_ops.ResourceScatterNdUpdate(
            ref=handles.index, indices=where, updates=tf.gather(entries, tf.boolean_mask(active, wins))
        )
        with tf.control_dependencies([written] if written is not None else []):
            waits = ~wins
            return tf.boolean_mask(active, waits), tf.boolean_mask(probes, waits) + 1

    tf.while_loop(
        lambda active, probes: tf.size(active) > 0,
        attempt,
        [tf.range(tf.size(keys, tf.int64)), probes],
        shape_invariants=[tf.TensorShape([None])] * 2,
        parallel_iterations=1,
    )


def _position(starts: Any, probes: Any, shape: MapShape) -> Any:
    """Returns the position that a search visits after `probes` others."""
    return (starts + probes * (probes + 1) // 2) % shape.positions


def _entries_at(handles: MapHandles, buckets: Any, positions: Any) -> Any:
    where = tf.stack([buckets, positions], axis=1)
    return tf.raw_ops.ResourceGatherNd(resource=handles.index, indices=where, dtype=tf.int32)


def _keys_at(handles: MapHandles, buckets: Any, entries: Any) -> Any:
    """Returns the keys of entries. For the entry 0, any key, because the search ends there anyway."""
    where = tf.stack([buckets, tf.cast(tf.maximum(entries - 1, 0), tf.int64)], axis=1)
    return tf.raw_ops.ResourceGatherNd(resource=handles.keys, indices=where, dtype=tf.int64)


def _fill(handles: MapHandles) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handles.fill, dtype=tf.int32)


def _numbers_within(buckets: Any) -> Any:
    """Returns how many earlier keys have the same bucket (int32 [n])."""
    order = tf.argsort(buckets, stable=True)
    ordered = tf.gather(buckets, order)
    firsts = tf.searchsorted(ordered, ordered)
    numbers = tf.range(tf.size(buckets)) - firsts
    return tf.scatter_nd(order[:, tf.newaxis], numbers, tf.shape(buckets))


def _is_first(values: Any) -> Any:
    """Returns whether no earlier value is equal (bool [n])."""
    distinct, number_of = tf.unique(values)
    numbers = tf.range(tf.size(values))
    firsts = tf.math.unsorted_segment_min(numbers, number_of, tf.size(distinct))
    return tf.equal(tf.gather(firsts, number_of), numbers)


def _refusal(refused: Any, shape: MapShape) -> Any:
    told = [
        "the vocabulary is full: a bucket has no place for a new key (key, places of a bucket):",
        refused[:1],
        shape.places,
        'nothing of this step was stored. Give the layer a larger capacity, or overflow="shared"',
    ]
    return tf.debugging.Assert(tf.equal(tf.size(refused), 0), told)
