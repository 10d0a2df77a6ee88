"""Moves the keys of a map into a map with another number of places in each bucket, or with other rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.growing.hashed_keys import BUCKETS
from parallax_runner.graph.growing.key_map import MapShape, enter

NO_ROW = -1
FIRST_STEP = 1  # the last use of a key that comes from a map without evictions


class StoredMap(NamedTuple):
    """A map whose variables have `values` by name. `index` and `free` are not needed."""

    shape: MapShape
    values: Mapping[str, np.ndarray]

    @property
    def has_key(self) -> np.ndarray:
        """Whether each place of a row is taken (bool [buckets, places])."""
        places = self.shape.places
        if self.shape.evicts:
            return self.values["last_used"][:, :places] > 0
        return np.arange(places) < self.values["fill"][:, np.newaxis]

    @property
    def waits(self) -> np.ndarray:
        """Whether a key waits at each place for keys that wait (bool [buckets, waiting places])."""
        return self.values["counts"] > 0 if self.shape.admits else np.zeros([BUCKETS, 0], bool)


def resized_map(old: StoredMap, new: MapShape) -> dict[str, np.ndarray]:
    """Returns the variables of a map of the shape `new` with the keys of another map, by name.

    A key keeps its bucket, and the order of places in it. Keys that wait are left out if none wait in the new map. In a
    map without evictions, no key has been used for longer than another. No bucket may have more keys than `new` has
    places.
    """
    found = {name: np.zeros([BUCKETS, *one.width], one.dtype) for name, one in new.variables.items()}
    found["overflow"] += old.values["overflow"]
    _move(found, old, new, old.has_key, old_first=0, new_first=0)
    found["fill"] += old.has_key.sum(axis=1, dtype=np.int32)
    if new.admits and old.shape.admits:
        _move(found, old, new, old.waits, old_first=old.shape.places, new_first=new.places)
        found["waiting"] += old.waits.sum(axis=1, dtype=np.int32)
    if new.evicts and old.shape.evicts:
        found["steps"] += old.values["steps"]
        found["evicted"] += old.values["evicted"]
    elif new.evicts:
        found["steps"] += FIRST_STEP
    found["index"] = _index(found["keys"], _taken(found, new), new)
    return found


def moved_rows(old: StoredMap, new: MapShape) -> np.ndarray:
    """Returns for each row of a table the row of the old table that belongs to the same key, or to the same bucket's
    keys without a row of their own; otherwise NO_ROW. int64 [rows]."""
    buckets, old_places, new_places = _moves(old.has_key)
    rows = np.full([BUCKETS, new.places], NO_ROW, np.int64)
    rows[buckets, new_places] = buckets * old.shape.places + old_places
    if not new.has_overflow_rows:
        return rows.ravel()
    shared = BUCKETS * old.shape.places + np.arange(BUCKETS)
    return np.concatenate([rows.ravel(), shared if old.shape.has_overflow_rows else np.full(BUCKETS, NO_ROW)])


def _moves(is_taken: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the bucket, the old place and the new place of each key: places without a key between keys are left
    out."""
    buckets, old_places = np.nonzero(is_taken)
    new_places = (np.cumsum(is_taken, axis=1) - 1)[buckets, old_places]
    return buckets, old_places, new_places


def _move(
    found: dict[str, np.ndarray], old: StoredMap, new: MapShape, is_taken: np.ndarray, *, old_first: int, new_first: int
) -> None:
    """Moves the keys of an area, which begins at other places, with their counts and uses."""
    buckets, old_places, new_places = _moves(is_taken)
    source, target = (buckets, old_first + old_places), (buckets, new_first + new_places)
    found["keys"][target] = old.values["keys"][source]
    if new.evicts:
        found["last_used"][target] = old.values["last_used"][source] if old.shape.evicts else FIRST_STEP
    if new_first:
        # A key with a count that is enough in the new map gets a row when it is seen again.
        found["counts"][buckets, new_places] = np.minimum(old.values["counts"][buckets, old_places], new.min_count - 1)


def _taken(found: Mapping[str, np.ndarray], new: MapShape) -> np.ndarray:
    """Returns whether each place has a key (bool [buckets, all places]). Those of an area come first."""
    taken = [np.arange(new.places) < found["fill"][:, np.newaxis]]
    if new.admits:
        taken.append(np.arange(new.waiting_places) < found["waiting"][:, np.newaxis])
    return np.concatenate(taken, axis=1)


def _index(keys: np.ndarray, is_taken: np.ndarray, shape: MapShape) -> np.ndarray:
    """Returns the index with the keys at the taken places."""
    buckets, places = np.nonzero(is_taken)
    variables = shape.variables
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
        made = [
            tf.Variable(tf.zeros([BUCKETS, *one.width], one.dtype), use_resource=True, trainable=False)
            for one in variables.values()
        ]
        handles = shape.handles([one.handle for one in made])

        def entered(keys: Any, buckets: Any, entries: Any) -> Any:
            enter(handles, shape, keys, buckets, entries, tf.zeros_like(keys))
            return tf.size(keys)

        given = [tf.placeholder(dtype, [None]) for dtype in (tf.int64, tf.int64, tf.int32)]
        number = tf.function(entered, autograph=False)(*given)  # so that all writes run, in their order
        session.run(tf.global_variables_initializer())
        session.run(number, dict(zip(given, (keys[is_taken], buckets, places + 1), strict=True)))
        found: np.ndarray = session.run(made[list(variables).index("index")].read_value())
    return found
