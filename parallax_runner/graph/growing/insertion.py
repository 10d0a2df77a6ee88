"""Gives rows to keys, and counts keys that wait for a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from parallax_runner.graph.growing.key_map import MapHandles, MapShape, Search, enter, replace_entries
from parallax_runner.graph.growing.places import (
    NO_PLACE,
    Area,
    add,
    cells,
    give_back,
    next_places,
    rows_area,
    take,
    waiting_area,
)


class Seen(NamedTuple):
    """The distinct keys of a call in ascending order (int64 [n]), their buckets among those of the handles (int64 [n]),
    how often they occur (int64 [n]; a key with 0 is only looked up), and where they are (`Search`)."""

    keys: Any
    buckets: Any
    times: Any
    found: Search


class Placed(NamedTuple):
    """What becomes of seen keys.

    `counts` (int32 [n]) are their counts up to `min_count`, if keys wait. `places` (int32 [n]) are the places that they
    take now, or NO_PLACE. `gets_row` (bool [n]) says whether the place has a row, and `is_lost` (bool [n]) whether the
    bucket has no place that the key needs.
    """

    counts: Any
    places: Any
    gets_row: Any
    is_lost: Any

    @property
    def is_placed(self) -> Any:
        """Whether a key takes a place (bool [n])."""
        return tf.not_equal(self.places, NO_PLACE)


def placed(handles: MapHandles, shape: MapShape, seen: Seen) -> Placed:
    """Decides what becomes of seen keys. The map does not change."""
    entries, is_seen = seen.found.entries, seen.times > 0
    counts = _counts(handles, shape, seen)
    wants_row = is_seen & ~has_row(shape, entries) & (counts >= shape.min_count)
    row_places = _places_of(handles, shape, rows_area(handles, shape), seen.buckets, wants_row)
    gets_row = tf.not_equal(row_places, NO_PLACE)
    if not shape.admits:
        return Placed(counts, row_places, gets_row, wants_row & ~gets_row)
    must_wait = is_seen & tf.equal(entries, 0) & ~gets_row
    waiting_places = _places_of(handles, shape, waiting_area(handles, shape), seen.buckets, must_wait)
    has_no_place = must_wait & tf.equal(waiting_places, NO_PLACE)
    is_lost = (wants_row & ~gets_row) | has_no_place
    return Placed(counts, tf.where(gets_row, row_places, waiting_places), gets_row, is_lost)


def store(handles: MapHandles, shape: MapShape, seen: Seen, made: Placed) -> Any:
    """Stores what becomes of seen keys. Returns their entries (int32 [n]), or 0 for a key without a place.

    Every write must wait for `full_check`. TensorFlow simplifies the values that it writes, and then an earlier op that
    waits can disappear.
    """
    add(handles.overflow, tf.boolean_mask(seen.buckets, made.is_lost), 1, tf.int64)
    new_keys, new_buckets, new_places = (
        tf.boolean_mask(each, made.is_placed) for each in (seen.keys, seen.buckets, made.places)
    )
    tf.raw_ops.ResourceScatterNdUpdate(ref=handles.keys, indices=cells(new_buckets, new_places), updates=new_keys)
    take(rows_area(handles, shape), tf.boolean_mask(seen.buckets, made.gets_row))
    is_new = made.is_placed & tf.equal(seen.found.entries, 0)
    enter(handles, shape, *_entries_of(seen, made, is_new))
    entries = tf.where(made.is_placed, made.places + 1, seen.found.entries)
    if shape.admits:
        take(waiting_area(handles, shape), tf.boolean_mask(seen.buckets, made.is_placed & ~made.gets_row))
        _write_counts(handles, shape, seen, made, entries)
        _leave_waiting(handles, shape, seen, made)
    return entries


def full_check(shape: MapShape, seen: Seen, made: Placed) -> list[Any]:
    """Returns ops that fail with InvalidArgumentError if a bucket is full and there are no overflow rows."""
    if shape.has_overflow_rows:
        return []
    refused = tf.boolean_mask(seen.keys, made.is_lost)
    told = [
        "the vocabulary is full: a bucket has no place for a new key (key, places of a bucket):",
        refused[:1],
        shape.places,
        'nothing of this step was stored. Give the layer a larger capacity, or overflow="shared"',
    ]
    return [tf.debugging.Assert(tf.equal(tf.size(refused), 0), told)]


def has_row(shape: MapShape, entries: Any) -> Any:
    """Returns whether entries (int32 [n]) are places of rows (bool [n])."""
    return (entries > 0) & (entries <= shape.places)


def reaches_min_count(handles: MapHandles, shape: MapShape, buckets: Any, entries: Any) -> Any:
    """Returns whether entries (int32 [n]) belong to keys that wait although they have been seen often enough, because
    their bucket was full (bool [n])."""
    return (entries > shape.places) & (_stored_counts(handles, shape, buckets, entries) >= shape.min_count)


def _counts(handles: MapHandles, shape: MapShape, seen: Seen) -> Any:
    times = tf.cast(tf.minimum(seen.times, shape.min_count), tf.int32)
    if not shape.admits:
        return times
    entries = seen.found.entries
    before = _stored_counts(handles, shape, seen.buckets, entries)
    waits = entries > shape.places
    return tf.minimum(times + tf.where(waits, before, tf.zeros_like(before)), shape.min_count)


def _stored_counts(handles: MapHandles, shape: MapShape, buckets: Any, entries: Any) -> Any:
    """Returns the counts of keys that wait (int32 [n]). For other entries, any count."""
    where = cells(buckets, tf.maximum(entries - 1 - shape.places, 0))
    return tf.raw_ops.ResourceGatherNd(resource=handles.counts, indices=where, dtype=tf.int32)


def _places_of(handles: MapHandles, shape: MapShape, area: Area, buckets: Any, wanted: Any) -> Any:
    """Returns the next places of an area for those keys that want one (int32 [n]), and NO_PLACE for the others."""
    places = next_places(handles, shape, area, tf.boolean_mask(buckets, wanted))
    none = tf.fill(tf.shape(buckets), NO_PLACE)
    return tf.tensor_scatter_nd_update(none, tf.where(wanted), places)


def _entries_of(seen: Seen, made: Placed, chosen: Any) -> tuple[Any, ...]:
    """Returns the keys, buckets, new entries and probes of the chosen keys."""
    values = (seen.keys, seen.buckets, made.places + 1, seen.found.probes)
    return tuple(tf.boolean_mask(each, chosen) for each in values)


def _write_counts(handles: MapHandles, shape: MapShape, seen: Seen, made: Placed, entries: Any) -> None:
    waits = (entries > shape.places) & (seen.times > 0)
    where = tf.boolean_mask(cells(seen.buckets, entries - 1 - shape.places), waits)
    counts = tf.boolean_mask(made.counts, waits)
    tf.raw_ops.ResourceScatterNdUpdate(ref=handles.counts, indices=where, updates=counts)


def _leave_waiting(handles: MapHandles, shape: MapShape, seen: Seen, made: Placed) -> None:
    """Gives back the places of keys that have waited and get a row."""
    admitted = made.gets_row & (seen.found.entries > shape.places)
    replace_entries(handles, shape, *_entries_of(seen, made, admitted))
    buckets, places = (tf.boolean_mask(each, admitted) for each in (seen.buckets, seen.found.entries - 1))
    forget(handles, shape, buckets, places)
    give_back(handles, waiting_area(handles, shape), buckets, places)


def forget(handles: MapHandles, shape: MapShape, buckets: Any, places: Any) -> None:
    """Clears the counts and uses of places of keys that have waited (int32 [n])."""
    nothing = tf.zeros_like(tf.cast(places, tf.int32))
    tf.raw_ops.ResourceScatterNdUpdate(
        ref=handles.counts, indices=cells(buckets, places - shape.places), updates=nothing
    )
    if shape.evicts:
        tf.raw_ops.ResourceScatterNdUpdate(ref=handles.last_used, indices=cells(buckets, places), updates=nothing)
