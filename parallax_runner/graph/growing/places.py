"""Gives keys places in their buckets, and takes places back.

The places of a bucket are a stack: those that are free begin at the position that is the number of taken ones. Without
`free`, the place at a position is the position itself. `free` contains the place at a position minus the position, so
that all values are zero at first. What it contains at the positions before has no meaning.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from parallax_runner.graph.growing.key_map import MapHandles, MapShape

NO_PLACE = -1


class Area(NamedTuple):
    """A range of the places of each bucket. `taken` is the resource that counts those that are taken (int32
    [buckets])."""

    taken: Any
    first: int
    size: int


def rows_area(handles: MapHandles, shape: MapShape) -> Area:
    """Returns the places that have rows."""
    return Area(handles.fill, 0, shape.places)


def waiting_area(handles: MapHandles, shape: MapShape) -> Area:
    """Returns the places of keys that wait. The map must have some."""
    return Area(handles.waiting, shape.places, shape.waiting_places)


def next_places(handles: MapHandles, shape: MapShape, area: Area, buckets: Any) -> Any:
    """Returns a free place for each of the buckets (int64 [n]), which can be equal. int32 [n], NO_PLACE if there is
    none. `take` makes them taken."""
    number = tf.gather(_read(area.taken), buckets) + _numbers_within(buckets)
    position = area.first + tf.minimum(number, area.size - 1)
    places = position + _shifts(handles, buckets, position) if shape.frees else position
    return tf.where(number < area.size, places, tf.fill(tf.shape(places), NO_PLACE))


def take(area: Area, buckets: Any) -> None:
    """Makes the next places of buckets (int64 [n]) taken."""
    add(area.taken, buckets, 1, tf.int32)


def give_back(handles: MapHandles, area: Area, buckets: Any, places: Any) -> None:
    """Makes taken places (int32 [n]) of buckets (int64 [n]) free. Of a bucket's places, the first is taken next."""
    add(area.taken, buckets, -1, tf.int32)
    position = area.first + tf.gather(_read(area.taken), buckets) + _numbers_within(buckets)
    tf.raw_ops.ResourceScatterNdUpdate(
        ref=handles.free, indices=cells(buckets, position), updates=tf.cast(places, tf.int32) - position
    )


def is_bucket_full(handles: MapHandles, shape: MapShape, buckets: Any) -> Any:
    """Returns whether each bucket has no free row (bool [n])."""
    return tf.gather(_read(handles.fill), buckets) >= shape.places


def add(counter: Any, buckets: Any, number: int, dtype: Any) -> None:
    """Adds a number to a counter for each of the buckets (int64 [n])."""
    tf.raw_ops.ResourceScatterAdd(
        resource=counter, indices=buckets, updates=tf.fill(tf.shape(buckets), tf.constant(number, dtype))
    )


def cells(buckets: Any, columns: Any) -> Any:
    """Returns the indices of cells of a variable of the map (int64 [n, 2])."""
    return tf.stack([buckets, tf.cast(columns, tf.int64)], axis=1)


def _shifts(handles: MapHandles, buckets: Any, position: Any) -> Any:
    return tf.raw_ops.ResourceGatherNd(resource=handles.free, indices=cells(buckets, position), dtype=tf.int32)


def _read(counter: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=counter, dtype=tf.int32)


def _numbers_within(buckets: Any) -> Any:
    """Returns how many earlier keys have the same bucket (int32 [n])."""
    order = tf.argsort(buckets, stable=True)
    ordered = tf.gather(buckets, order)
    firsts = tf.searchsorted(ordered, ordered)
    numbers = tf.range(tf.size(buckets)) - firsts
    return tf.scatter_nd(order[:, tf.newaxis], numbers, tf.shape(buckets))
