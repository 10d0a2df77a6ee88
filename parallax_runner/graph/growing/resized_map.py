"""Moves the keys of a map into a map with another number of places in each bucket."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.growing.hashed_keys import BUCKETS
from parallax_runner.graph.growing.key_map import MapHandles, MapShape, insert, search

NO_ROW = -1


def resized_map(keys: np.ndarray, fill: np.ndarray, shape: MapShape) -> tuple[np.ndarray, np.ndarray]:
    """Returns `keys` and `index` of a map of this shape with the keys of another map, which has `keys` (int64 [buckets,
    places]) and `fill` (int32 [buckets]). A key keeps its bucket and its place. No bucket may have more keys than
    `shape` has places."""
    is_taken = np.arange(keys.shape[1]) < fill[:, np.newaxis]
    buckets, _ = np.nonzero(is_taken)
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
        variables = {
            "keys": tf.zeros([BUCKETS, shape.places], tf.int64),
            "index": tf.zeros([BUCKETS, shape.positions], tf.int32),
            "fill": tf.zeros([BUCKETS], tf.int32),
            "overflow": tf.zeros([BUCKETS], tf.int64),
        }
        made = {name: tf.Variable(value, use_resource=True, trainable=False) for name, value in variables.items()}
        handles = MapHandles(*(made[name].handle for name in MapHandles._fields))
        given, of_buckets = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])

        def enter(keys: Any, buckets: Any) -> Any:
            return insert(handles, shape, keys, buckets, search(handles, shape, keys, buckets).probes)

        entered = tf.function(enter, autograph=False)(given, of_buckets)  # so that all writes run, in their order
        session.run(tf.global_variables_initializer())
        session.run(entered, {given: keys[is_taken], of_buckets: buckets})
        moved, index = session.run([made["keys"].read_value(), made["index"].read_value()])
    return moved, index


def moved_rows(fill: np.ndarray, old: MapShape, new: MapShape) -> np.ndarray:
    """Returns for each row of a table the row of the old table that belongs to the same key, or to the same bucket's
    keys without a row of their own; otherwise NO_ROW. int64 [rows]."""
    places = np.arange(new.places)
    of_keys = np.arange(BUCKETS)[:, np.newaxis] * old.places + places
    rows = np.where(places < fill[:, np.newaxis], of_keys, NO_ROW).ravel()
    if not new.has_overflow_rows:
        return rows
    shared = BUCKETS * old.places + np.arange(BUCKETS)
    return np.concatenate([rows, shared if old.has_overflow_rows else np.full(BUCKETS, NO_ROW)])
