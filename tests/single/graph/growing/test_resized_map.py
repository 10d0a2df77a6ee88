"""Keys keep their buckets and places when a map is resized, and are found again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.growing.hashed_keys import BUCKETS
from parallax_runner.graph.growing.key_calls import UNKNOWN, rows_of_known, rows_with_inserts, table_rows
from parallax_runner.graph.growing.key_map import MapHandles, MapShape
from parallax_runner.graph.growing.resized_map import NO_ROW, moved_rows, resized_map
from tests.growing_keys import bucket_of

KEYS = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, size=6000)
OLD = MapShape(24, True)


def variables(shape: MapShape) -> MapHandles:
    sizes = {"keys": [shape.places], "index": [shape.positions], "fill": [], "overflow": []}
    dtypes = {"keys": tf.int64, "index": tf.int32, "fill": tf.int32, "overflow": tf.int64}
    return MapHandles(*(tf.Variable(tf.zeros([BUCKETS, *size], dtypes[name])) for name, size in sizes.items()))


def handles(made: MapHandles) -> MapHandles:
    return MapHandles(*(one.handle for one in made))


@pytest.mark.parametrize("new", [MapShape(17, False), MapShape(17, True), MapShape(60, True), MapShape(24, False)])
def test_each_key_keeps_its_row(new: MapShape) -> None:
    old_map, new_map = variables(OLD), variables(new)
    old_rows = np.concatenate(
        [rows_with_inserts(handles(old_map), tf.constant(part), OLD).rows.numpy() for part in np.split(KEYS, 4)]
    )
    fill = old_map.fill.numpy()
    assert fill.max() <= 17
    keys, index = resized_map(old_map.keys.numpy(), fill, new)
    new_map.keys.assign(keys)
    new_map.index.assign(index)
    new_map.fill.assign(fill)
    rows = rows_of_known(handles(new_map), tf.constant(KEYS), new).numpy()
    moved = moved_rows(fill, OLD, new)
    assert len(moved) == table_rows(new)
    np.testing.assert_array_equal(moved[rows], old_rows)
    assert np.count_nonzero(moved[: BUCKETS * new.places] != NO_ROW) == len(KEYS)
    unknown = rows_of_known(handles(new_map), tf.constant(KEYS[:9] + 1), new).numpy()
    is_full = fill[[bucket_of(key) for key in (KEYS[:9] + 1).tolist()]] == new.places
    assert (is_full | (unknown == UNKNOWN)).all()


def test_overflow_rows_belong_to_the_same_buckets() -> None:
    moved = moved_rows(np.zeros([BUCKETS], np.int32), OLD, MapShape(30, True))
    np.testing.assert_array_equal(moved[-BUCKETS:], BUCKETS * 24 + np.arange(BUCKETS))
    fresh = moved_rows(np.zeros([BUCKETS], np.int32), MapShape(24, False), MapShape(30, True))
    assert set(fresh.tolist()) == {NO_ROW}
