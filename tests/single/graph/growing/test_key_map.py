"""A map gives each key one row, in a graph function, and finds it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.growing import key_calls, key_map, places
from parallax_runner.graph.growing.hashed_keys import BUCKETS
from parallax_runner.graph.growing.key_calls import UNKNOWN, rows_of_known, rows_with_inserts, table_rows
from parallax_runner.graph.growing.key_map import MapHandles, MapShape
from tests.growing_keys import bucket_of, keys_of_bucket


class Map:
    """A map in variables: the whole map, or the buckets of one rank."""

    def __init__(self, shape: MapShape, *, rank: int = 0, ranks: int = 1) -> None:
        self.shape, self.ranks = shape, ranks
        buckets = len(range(rank, BUCKETS, ranks))
        sizes = {"keys": [shape.places], "index": [shape.positions], "fill": [], "overflow": []}
        dtypes = {"keys": tf.int64, "index": tf.int32, "fill": tf.int32, "overflow": tf.int64}
        self.variables = {name: tf.Variable(tf.zeros([buckets, *size], dtypes[name])) for name, size in sizes.items()}
        self.handles = MapHandles(*(variable.handle for variable in self.variables.values()))

    def insert(self, keys: list[int]) -> list[int]:
        """Returns the rows of keys, and checks those that are new."""
        before = int(self.variables["fill"].numpy().sum())
        inserted = rows_with_inserts(self.handles, tf.constant(keys, tf.int64), self.shape, ranks=self.ranks)
        rows = inserted.rows.numpy().tolist()
        new = dict(zip(inserted.new_keys.numpy().tolist(), inserted.new_rows.numpy().tolist(), strict=True))
        assert len(set(new.values())) == len(new) == int(self.variables["fill"].numpy().sum()) - before
        assert all(row == dict(zip(keys, rows, strict=True))[key] for key, row in new.items())
        return rows

    def find(self, keys: list[int]) -> list[int]:
        """Returns the rows of keys."""
        return rows_of_known(self.handles, tf.constant(keys, tf.int64), self.shape, ranks=self.ranks).numpy().tolist()

    def values(self) -> dict[str, np.ndarray]:
        """Returns the values of the variables."""
        return {name: variable.numpy() for name, variable in self.variables.items()}


def drawn(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, size=count).tolist()


def test_each_key_has_one_row() -> None:
    made, keys, rows = Map(MapShape(16, False)), drawn(2000), {}
    for first in range(0, 2000, 100):
        batch = [*keys[first : first + 100], *keys[: first // 2], *keys[first : first + 7], 0, -1, 2**63 - 1, -(2**63)]
        found = made.insert(batch)
        for key, row in zip(batch, found, strict=True):
            assert rows.setdefault(key, row) == row
        assert made.find(batch) == found
    assert len(set(rows.values())) == len(rows) == 2004
    stored = made.values()["keys"].reshape(-1)
    assert all(stored[row] == key for key, row in rows.items())
    assert all(row // 16 == bucket_of(key) for key, row in rows.items())


def test_every_integer_is_a_key() -> None:
    """No key is reserved, not even those that stand for an empty place in other maps."""
    made = Map(MapShape(2, False))
    edges = [0, -1, -(2**63), 2**63 - 1]
    assert made.find(edges) == [UNKNOWN] * 4
    rows = made.insert(edges)
    assert len(set(rows)) == 4
    assert made.find(edges) == rows


def test_a_bucket_fills_to_its_last_place() -> None:
    made, keys = Map(MapShape(5, False)), keys_of_bucket(3, 5)
    assert made.insert(list(reversed(keys))) == [19, 18, 17, 16, 15]
    assert made.find(keys) == [15, 16, 17, 18, 19]


def test_the_smallest_new_key_comes_first() -> None:
    """The order within a step decides rows, so it must not depend on the order of examples."""
    keys = drawn(300)
    one, other = Map(MapShape(8, False)), Map(MapShape(8, False))
    assert one.insert(keys) == list(reversed(other.insert(list(reversed(keys)))))
    for name, value in one.values().items():
        np.testing.assert_array_equal(value, other.values()[name])


def test_a_full_bucket_is_an_error_before_anything_changes() -> None:
    made, keys = Map(MapShape(2, False)), keys_of_bucket(9, 3)
    made.insert(keys[:2])
    before = made.values()
    with pytest.raises(tf.errors.InvalidArgumentError, match="the vocabulary is full") as raised:
        made.insert([12345, *keys])
    assert str(keys[2]) in str(raised.value)
    assert 'overflow="shared"' in str(raised.value).replace("\\", "")
    for name, value in made.values().items():
        np.testing.assert_array_equal(value, before[name])


def test_keys_of_a_full_bucket_share_a_row() -> None:
    made, keys = Map(MapShape(2, True)), keys_of_bucket(9, 5)
    shared = 2 * BUCKETS + 9
    assert table_rows(made.shape) == 3 * BUCKETS
    assert made.insert([*keys, *keys]) == [18, 19, shared, shared, shared] * 2
    assert made.find(keys) == [18, 19, shared, shared, shared]
    assert made.values()["overflow"][9] == 3
    made.insert(keys[2:4])
    assert made.values()["overflow"][9] == made.values()["overflow"].sum() == 5
    assert made.values()["fill"].sum() == 2


def test_finding_changes_nothing() -> None:
    made = Map(MapShape(4, True))
    made.insert(drawn(200))
    before = made.values()
    assert UNKNOWN in made.find(drawn(200, seed=1))
    assert all((value == before[name]).all() for name, value in made.values().items())


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_ranks_are_parts_of_the_whole(ranks: int) -> None:
    shape = MapShape(4, True)
    whole, parts = Map(shape), [Map(shape, rank=rank, ranks=ranks) for rank in range(ranks)]
    for step in range(5):
        keys = drawn(400, seed=step // 2)
        rows = dict(zip(keys, whole.insert(keys), strict=True))
        for rank, part in enumerate(parts):
            own = [key for key in keys if bucket_of(key) % ranks == rank]
            assert part.insert(own) == [rows[key] for key in own]
            assert part.find(own) == [rows[key] for key in own]
    for name, value in whole.values().items():
        for rank, part in enumerate(parts):
            np.testing.assert_array_equal(value[rank::ranks], part.values()[name])


def test_no_keys() -> None:
    made = Map(MapShape(2, False))
    assert made.insert([]) == made.find([]) == []


@contextmanager
def anew() -> Iterator[None]:
    """Traces the functions again within the block, and after it."""
    for function in (key_calls._inserting, key_calls._finding):
        function.cache_clear()
    yield
    for function in (key_calls._inserting, key_calls._finding):
        function.cache_clear()


def all_win(values: tf.Tensor) -> tf.Tensor:
    return tf.ones_like(values, tf.bool)


FAULTS = {
    "a position that two keys take": mock.patch.object(key_map, "_is_first", all_win),
    "a place that two keys take": mock.patch.object(
        places, "_numbers_within", lambda buckets: tf.zeros_like(buckets, tf.int32)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_finds_a_fault(fault: str) -> None:
    """The test of rows fails if a key of a step loses its row to another one."""
    with anew(), FAULTS[fault], pytest.raises(AssertionError):
        test_each_key_has_one_row()


def test_finds_a_search_that_stops_early() -> None:
    """A search that does not compare keys finds the row of another key."""
    with anew(), mock.patch.object(key_map, "_keys_at", lambda handles, buckets, entries: tf.zeros_like(buckets)):
        made = Map(MapShape(4, False))
        with pytest.raises((AssertionError, tf.errors.InvalidArgumentError)):
            for _ in range(2):
                rows = made.insert([3, 5, 8])
                assert made.find([3, 5, 8]) == rows
