"""Finds keys in a map that consists of variables, and enters keys into its index.

The map has `BUCKETS` buckets. A bucket has a fixed number of places: first those of its rows, and then those of keys
that wait for a row, if keys do. The variables have one row for each bucket, and all values are zero at first:

- `keys` (int64 [buckets, all places]) contains the key at each place, `fill` (int32 [buckets]) the number of taken
  rows, and `overflow` (int64 [buckets]) how often a step saw a distinct key for which its full bucket has no place.
- `free` (int32 [buckets, all places]) contains stacks of free places (places.py).
- `counts` (int32 [buckets, waiting places]) tells how often a key that waits has been seen, and is 0 at a free place.
  `waiting` (int32 [buckets]) is the number of keys that wait.
- `last_used` (int32 [buckets, all places]) is the step that has last seen a key, and 0 at a free place. `steps` (int32
  [buckets]) is the number of steps, and `evicted` (int64 [buckets]) how many rows were taken from keys.
- `index` (int32 [buckets, positions]) finds the place of a key: an entry is a place plus one, or 0. A search begins at
  a position that the key's hash chooses, and visits all positions (triangular numbers modulo a power of two) until it
  meets the key or a 0. At least half of the positions are 0, so a search is short.

Tensors are compared with `tf.equal`, because workers run TensorFlow 1's behavior, where `==` compares objects.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from parallax_runner.graph.growing.hashed_keys import starts_of


class MapHandles(NamedTuple):
    """The resources of the variables of a map, or of the buckets that a rank owns. None if the map does not have the
    variable."""

    keys: Any
    index: Any
    fill: Any
    overflow: Any
    free: Any = None
    counts: Any = None
    waiting: Any = None
    last_used: Any = None
    steps: Any = None
    evicted: Any = None

    @property
    def given(self) -> list[Any]:
        """The resources that the map has."""
        return [handle for handle in self if handle is not None]


class MapVariable(NamedTuple):
    """A variable of a map: the shape of the row of a bucket, and the dtype."""

    width: tuple[int, ...]
    dtype: str


class MapShape(NamedTuple):
    """The sizes and the rules of a map.

    A bucket has `places` rows. `has_overflow_rows` says what becomes of a key whose bucket is full: it takes the
    overflow row of its bucket, or the step fails. A key gets a row when it has been seen `min_count` times. After each
    `every_steps` steps, keys leave that the last `unused_steps` steps have not seen. With `every_steps` 0, none do.
    """

    places: int
    has_overflow_rows: bool
    min_count: int = 1
    unused_steps: int = 0
    every_steps: int = 0

    @property
    def admits(self) -> bool:
        """Whether keys wait for a row."""
        return self.min_count > 1

    @property
    def evicts(self) -> bool:
        """Whether keys leave."""
        return self.every_steps > 0

    @property
    def frees(self) -> bool:
        """Whether taken places become free."""
        return self.admits or self.evicts

    @property
    def waiting_places(self) -> int:
        """The number of places of a bucket for keys that wait."""
        return self.places if self.admits else 0

    @property
    def all_places(self) -> int:
        """The number of places of a bucket."""
        return self.places + self.waiting_places

    @property
    def positions(self) -> int:
        """The number of positions of a bucket in the index: a power of two, at least twice the number of places."""
        return 1 << (2 * self.all_places - 1).bit_length()

    @property
    def variables(self) -> dict[str, MapVariable]:
        """The variables of the map by name, in the order of `MapHandles`."""
        found = {
            "keys": MapVariable((self.all_places,), "int64"),
            "index": MapVariable((self.positions,), "int32"),
            "fill": MapVariable((), "int32"),
            "overflow": MapVariable((), "int64"),
        }
        if self.frees:
            found["free"] = MapVariable((self.all_places,), "int32")
        if self.admits:
            found["counts"] = MapVariable((self.waiting_places,), "int32")
            found["waiting"] = MapVariable((), "int32")
        if self.evicts:
            found["last_used"] = MapVariable((self.all_places,), "int32")
            found["steps"] = MapVariable((), "int32")
            found["evicted"] = MapVariable((), "int64")
        return found

    def handles(self, given: Any) -> MapHandles:
        """Returns resources by name, from those of `variables` in their order."""
        return MapHandles(**dict(zip(self.variables, given, strict=True)))


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


def enter(handles: MapHandles, shape: MapShape, keys: Any, buckets: Any, entries: Any, probes: Any) -> None:
    """Writes new entries (int32 [n]) to the index. `probes` comes from the search for the keys.

    In each round, every key that waits tries the next position of its search. If several keys try the same free
    position, the first of them takes it.
    """
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


def replace_entries(handles: MapHandles, shape: MapShape, keys: Any, buckets: Any, entries: Any, probes: Any) -> None:
    """Writes new entries (int32 [n]) for keys that are in the index. `probes` comes from the search for the keys."""
    where = tf.stack([buckets, _position(starts_of(keys, shape.positions), probes, shape)], axis=1)
    tf.raw_ops.ResourceScatterNdUpdate(ref=handles.index, indices=where, updates=entries)


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


def _is_first(values: Any) -> Any:
    """Returns whether no earlier value is equal (bool [n])."""
    distinct, number_of = tf.unique(values)
    numbers = tf.range(tf.size(values))
    firsts = tf.math.unsorted_segment_min(numbers, number_of, tf.size(distinct))
    return tf.equal(tf.gather(firsts, number_of), numbers)
