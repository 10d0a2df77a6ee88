"""Keys keep their buckets and places when a map is resized, and are found again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.growing.hashed_keys import BUCKETS
from parallax_runner.graph.growing.key_calls import UNKNOWN, rows_of_known, rows_with_inserts, table_rows
from parallax_runner.graph.growing.key_map import MapHandles, MapShape
from parallax_runner.graph.growing.resized_map import NO_ROW, StoredMap, moved_rows, resized_map
from tests.growing_keys import bucket_of

KEYS = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, size=6000)
OLD = MapShape(24, True)


def empty(shape: MapShape) -> dict[str, tf.Variable]:
    return {name: tf.Variable(tf.zeros([BUCKETS, *one.width], one.dtype)) for name, one in shape.variables.items()}


def handles(made: dict[str, tf.Variable], shape: MapShape) -> MapHandles:
    return shape.handles([one.handle for one in made.values()])


def stored(made: dict[str, tf.Variable], shape: MapShape) -> StoredMap:
    return StoredMap(shape, {name: one.numpy() for name, one in made.items() if name not in ("index", "free")})


def loaded(values: dict[str, np.ndarray], shape: MapShape) -> dict[str, tf.Variable]:
    made = empty(shape)
    for name, value in values.items():
        made[name].assign(value)
    return made


@pytest.mark.parametrize("new", [MapShape(17, False), MapShape(17, True), MapShape(60, True), MapShape(24, False)])
def test_each_key_keeps_its_row(new: MapShape) -> None:
    old_map = empty(OLD)
    old_rows = np.concatenate(
        [rows_with_inserts(handles(old_map, OLD), tf.constant(part), OLD).rows.numpy() for part in np.split(KEYS, 4)]
    )
    fill = old_map["fill"].numpy()
    assert fill.max() <= 17
    new_map = loaded(resized_map(stored(old_map, OLD), new), new)
    np.testing.assert_array_equal(new_map["fill"].numpy(), fill)
    rows = rows_of_known(handles(new_map, new), tf.constant(KEYS), new).numpy()
    moved = moved_rows(stored(old_map, OLD), new)
    assert len(moved) == table_rows(new)
    np.testing.assert_array_equal(moved[rows], old_rows)
    assert np.count_nonzero(moved[: BUCKETS * new.places] != NO_ROW) == len(KEYS)
    unknown = rows_of_known(handles(new_map, new), tf.constant(KEYS[:9] + 1), new).numpy()
    is_full = fill[[bucket_of(key) for key in (KEYS[:9] + 1).tolist()]] == new.places
    assert (is_full | (unknown == UNKNOWN)).all()


def test_overflow_rows_belong_to_the_same_buckets() -> None:
    moved = moved_rows(stored(empty(OLD), OLD), MapShape(30, True))
    np.testing.assert_array_equal(moved[-BUCKETS:], BUCKETS * 24 + np.arange(BUCKETS))
    without = MapShape(24, False)
    fresh = moved_rows(stored(empty(without), without), MapShape(30, True))
    assert set(fresh.tolist()) == {NO_ROW}


RULES = MapShape(24, True, min_count=3, unused_steps=2, every_steps=1)


def with_rules() -> tuple[dict[str, tf.Variable], dict[int, int]]:
    """Returns a map whose taken places have gaps, and the rows of its keys. Others wait."""
    made = empty(RULES)
    batches = (np.repeat(KEYS[:3000], 3), KEYS[3000:4000], np.repeat(KEYS[1000:3000], 2), KEYS[2000:3400])
    for batch in batches:
        rows_with_inserts(handles(made, RULES), tf.constant(batch), RULES)
    rows = rows_of_known(handles(made, RULES), tf.constant(KEYS), RULES).numpy()
    return made, {key: row for key, row in zip(KEYS.tolist(), rows.tolist(), strict=True) if row != UNKNOWN}


@pytest.mark.parametrize(
    "new", [RULES._replace(places=40), MapShape(24, True), MapShape(24, False, unused_steps=5, every_steps=1)]
)
def test_keys_keep_rows_counts_and_uses(new: MapShape) -> None:
    """Also in a map without rules, whose taken places have no gaps."""
    old_map, old_rows = with_rules()
    assert len(old_rows) == 2000 and old_map["waiting"].numpy().sum() == 400
    new_map = loaded(resized_map(stored(old_map, RULES), new), new)
    keys = np.array(list(old_rows))
    rows = rows_of_known(handles(new_map, new), tf.constant(keys), new).numpy()
    moved = moved_rows(stored(old_map, RULES), new)
    assert moved[rows].tolist() == list(old_rows.values())
    if new.evicts:
        assert set(new_map["steps"].numpy()) == {4}
        used = new_map["last_used"].numpy()[:, : new.places].reshape(-1)[rows]
        assert dict(zip(keys.tolist(), used.tolist(), strict=True)) == {
            key: 4 if key in KEYS[2000:3000] else 3 for key in keys.tolist()
        }
    if new.admits:
        assert new_map["counts"].numpy().sum() == 2 * 400
        admitted = rows_with_inserts(handles(new_map, new), tf.constant(KEYS[3000:3400]), new)
        assert sorted(admitted.new_keys.numpy()) == sorted(KEYS[3000:3400])


def test_a_map_without_rules_becomes_one_with_rules() -> None:
    old_map = empty(OLD)
    rows_with_inserts(handles(old_map, OLD), tf.constant(KEYS), OLD)
    new_map = loaded(resized_map(stored(old_map, OLD), RULES), RULES)
    assert set(new_map["steps"].numpy()) == {1}
    rows_with_inserts(handles(new_map, RULES), tf.constant(KEYS[:100]), RULES)
    assert new_map["fill"].numpy().sum() == len(KEYS)
    rows_with_inserts(handles(new_map, RULES), tf.constant(KEYS[:100]), RULES)
    assert new_map["fill"].numpy().sum() == 100
