"""Random streams of keys through a map that admits and evicts keys, beside a model in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.growing import eviction, insertion, key_calls, places
from parallax_runner.graph.growing.hashed_keys import BUCKETS
from parallax_runner.graph.growing.key_calls import UNKNOWN, rows_of_known, rows_with_inserts
from parallax_runner.graph.growing.key_map import MapHandles, MapShape
from tests.growing_keys import bucket_of, keys_of_bucket

SOME_BUCKETS = (0, 3, 700)
KEYS = [key for bucket in SOME_BUCKETS for key in keys_of_bucket(bucket, 9, first=-20000)]
SHAPES = {
    "admits": MapShape(9, False, min_count=3),
    "evicts": MapShape(9, False, unused_steps=2, every_steps=3),
    "both": MapShape(9, False, min_count=2, unused_steps=3, every_steps=2),
    "evicts, and shares rows": MapShape(3, True, unused_steps=1, every_steps=1),
    "both, and shares rows": MapShape(3, True, min_count=2, unused_steps=2, every_steps=3),
}


class Model:
    """The rules in plain Python. Free places are lists, of which the first is taken next."""

    def __init__(self, shape: MapShape) -> None:
        self.shape, self.step_number, self.evicted = shape, 0, 0
        self.rows: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.last_used: dict[int, int] = {}
        self.overflow: Counter[int] = Counter()
        self.free_rows = defaultdict(lambda: list(range(shape.places)))
        self.free_waiting = defaultdict(lambda: list(range(shape.waiting_places)))

    def step(self, keys: list[int]) -> list[int]:
        """Returns the rows of keys after a step has seen them, and before it evicts keys."""
        self.step_number += 1
        times, admitted = Counter(keys), []
        for key in sorted(times):
            if key not in self.rows and self._see(key, times[key]):
                admitted.append(key)
        self._stop_waiting(admitted)
        for key in times:
            if key in self.rows or key in self.waiting:
                self.last_used[key] = self.step_number
        found = [self.row(key) for key in keys]
        if self.shape.evicts and self.step_number % self.shape.every_steps == 0:
            self._evict()
        return found

    def row(self, key: int) -> int:
        """Returns the row of a key."""
        bucket, shape = bucket_of(key), self.shape
        if key in self.rows:
            return bucket * shape.places + self.rows[key]
        is_full = not self.free_rows[bucket]
        shares = self.counts.get(key, 0) >= shape.min_count if shape.admits else is_full
        return BUCKETS * shape.places + bucket if shape.has_overflow_rows and shares else UNKNOWN

    def _see(self, key: int, times: int) -> bool:
        """Returns whether a key without a row gets one after it has waited."""
        bucket, shape = bucket_of(key), self.shape
        count = min(self.counts.get(key, 0) + times, shape.min_count)
        if count >= shape.min_count and self.free_rows[bucket]:
            self.rows[key] = self.free_rows[bucket].pop(0)
            return key in self.waiting
        is_lost = count >= shape.min_count
        if key not in self.waiting and not self.free_waiting[bucket]:
            self.overflow[bucket] += 1
            return False
        if key not in self.waiting:
            self.waiting[key] = self.free_waiting[bucket].pop(0)
        self.counts[key] = count
        self.overflow[bucket] += is_lost
        return False

    def _stop_waiting(self, keys: list[int]) -> None:
        freed = defaultdict(list)
        for key in keys:
            freed[bucket_of(key)].append(self.waiting.pop(key))
            del self.counts[key]
        for bucket, own in freed.items():
            self.free_waiting[bucket] = own + self.free_waiting[bucket]

    def _evict(self) -> None:
        old = [key for key, used in self.last_used.items() if used <= self.step_number - self.shape.unused_steps]
        for area, free in ((self.rows, self.free_rows), (self.waiting, self.free_waiting)):
            freed = defaultdict(list)
            for key in filter(area.__contains__, old):
                freed[bucket_of(key)].append(area[key])
            for bucket, own in freed.items():
                free[bucket] = sorted(own) + free[bucket]
        for key in old:
            self.evicted += self.rows.pop(key, None) is not None
            self.waiting.pop(key, None)
            self.counts.pop(key, None)
            del self.last_used[key]


class Map:
    """The map in variables: the whole map, or the buckets of one rank."""

    def __init__(self, shape: MapShape, *, rank: int = 0, ranks: int = 1) -> None:
        self.shape, self.ranks = shape, ranks
        buckets = len(range(rank, BUCKETS, ranks))
        self.variables = {
            name: tf.Variable(tf.zeros([buckets, *one.width], one.dtype)) for name, one in shape.variables.items()
        }

    @property
    def handles(self) -> MapHandles:
        return self.shape.handles([variable.handle for variable in self.variables.values()])

    def step(self, keys: list[int], times: list[int] | None = None) -> list[int]:
        """Returns the rows of keys after a step has seen them, and checks those that are new."""
        before = self.values()
        given = tf.constant(keys, tf.int64)
        times = None if times is None else tf.constant(times, tf.int64)
        found = rows_with_inserts(self.handles, given, self.shape, ranks=self.ranks, times=times)
        rows = found.rows.numpy().tolist()
        new = dict(zip(found.new_keys.numpy().tolist(), found.new_rows.numpy().tolist(), strict=True))
        evicted = 0 if "evicted" not in before else self.values()["evicted"].sum() - before["evicted"].sum()
        assert len(new) == self.values()["fill"].sum() - before["fill"].sum() + evicted
        assert all(row == dict(zip(keys, rows, strict=True))[key] for key, row in new.items())
        return rows

    def find(self, keys: list[int]) -> list[int]:
        return rows_of_known(self.handles, tf.constant(keys, tf.int64), self.shape, ranks=self.ranks).numpy().tolist()

    def values(self) -> dict[str, np.ndarray]:
        return {name: variable.numpy() for name, variable in self.variables.items()}


def stream(seed: int, steps: int) -> Iterator[list[int]]:
    """Yields the keys of each step: a few of the keys, which change with time."""
    draw = np.random.default_rng(seed)
    for step in range(steps):
        kept = draw.choice(KEYS, size=int(draw.integers(1, 8)))
        recent = draw.choice(np.roll(KEYS, 3 * step)[:6], size=int(draw.integers(0, 6)))
        yield [*kept.tolist(), *recent.tolist()]


@pytest.mark.parametrize("name", SHAPES)
def test_streams_as_in_plain_python(name: str) -> None:
    shape = SHAPES[name]
    for seed in range(3):
        made, model = Map(shape), Model(shape)
        for keys in stream(seed, 25):
            assert made.step(keys) == model.step(keys)
            assert made.find(KEYS) == [model.row(key) for key in KEYS]
            _check(made.values(), model)
        assert not shape.evicts or model.evicted
        assert not shape.has_overflow_rows or sum(model.overflow.values())


def _check(values: dict[str, np.ndarray], model: Model) -> None:
    """Checks what the variables say about keys."""
    places = model.shape.places
    for key, place in model.rows.items():
        assert values["keys"][bucket_of(key), place] == key
    assert values["fill"].sum() == len(model.rows)
    assert {bucket: values["overflow"][bucket] for bucket in SOME_BUCKETS} == {
        bucket: model.overflow[bucket] for bucket in SOME_BUCKETS
    }
    if model.shape.admits:
        assert values["waiting"].sum() == len(model.waiting) == np.count_nonzero(values["counts"])
        assert {key: values["counts"][bucket_of(key), place] for key, place in model.waiting.items()} == model.counts
    if model.shape.evicts:
        assert set(values["steps"].tolist()) == {model.step_number}
        assert values["evicted"].sum() == model.evicted
        cells = {key: place for key, place in model.rows.items()} | {
            key: places + place for key, place in model.waiting.items()
        }
        used = {key: values["last_used"][bucket_of(key), place] for key, place in cells.items()}
        assert used == model.last_used
        assert np.count_nonzero(values["last_used"]) == len(cells)


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_ranks_are_parts_of_the_whole(ranks: int) -> None:
    """Each rank gets the keys of its buckets from every rank, with their occurrences there."""
    shape = SHAPES["both, and shares rows"]
    whole, parts = Map(shape), [Map(shape, rank=rank, ranks=ranks) for rank in range(ranks)]
    for keys in stream(9, 12):
        rows = dict(zip(keys, whole.step(keys), strict=True))
        batches = [Counter(keys[rank::ranks]) for rank in range(ranks)]
        for owner, part in enumerate(parts):
            sent = [(key, n) for batch in batches for key, n in batch.items() if bucket_of(key) % ranks == owner]
            assert part.step([key for key, _ in sent], [n for _, n in sent]) == [rows[key] for key, _ in sent]
    for name, value in whole.values().items():
        for rank, part in enumerate(parts):
            np.testing.assert_array_equal(value[rank::ranks], part.values()[name], err_msg=name)


@pytest.mark.parametrize("name", ["evicts", "both, and shares rows"])
def test_an_eviction_in_parts_is_one_eviction(name: str) -> None:
    """The last part has fewer buckets."""
    shape = SHAPES[name]
    whole = trained(shape)
    assert whole["evicted"].sum()
    with anew(), mock.patch.object(eviction, "PLACES_AT_ONCE", 300 * shape.all_places):
        in_parts = trained(shape)
    for variable, value in whole.items():
        np.testing.assert_array_equal(in_parts[variable], value, err_msg=variable)


def trained(shape: MapShape) -> dict[str, np.ndarray]:
    """Returns the variables of a map after a stream."""
    made = Map(shape)
    for keys in stream(4, 12):
        made.step(keys)
    return made.values()


def test_a_full_bucket_changes_nothing() -> None:
    """The error comes before a count, a use or the number of steps changes."""
    made = Map(MapShape(2, False, min_count=2, unused_steps=5, every_steps=1))
    first, second, third, fourth = keys_of_bucket(4, 4)
    made.step([first, first, second])
    before = made.values()
    no_place_to_wait, no_row = [third, fourth], [second, third, third]
    for crowd in (no_place_to_wait, no_row):
        with pytest.raises(tf.errors.InvalidArgumentError, match="the vocabulary is full"):
            made.step([12345, *crowd])
        for name, value in made.values().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_call_that_sees_no_key_and_ends_no_step_changes_nothing() -> None:
    """The proof of a step repeats its lookups."""
    shape = SHAPES["both, and shares rows"]
    made = Map(shape)
    for keys in stream(3, 5):
        made.step(keys)
    before = made.values()
    given = tf.constant(KEYS, tf.int64)
    call = key_calls._inserting(shape, 1)
    rows, new_rows, _ = call(*made.handles.given, given, tf.zeros_like(given), tf.constant(False))
    assert rows.numpy().tolist() == made.find(KEYS)
    assert not len(new_rows)
    assert all((value == before[name]).all() for name, value in made.values().items())


@contextmanager
def anew() -> Iterator[None]:
    """Traces the functions again within the block, and after it."""
    for function in (key_calls._inserting, key_calls._finding):
        function.cache_clear()
    yield
    for function in (key_calls._inserting, key_calls._finding):
        function.cache_clear()


def _nothing(*_: Any) -> None:
    return None


FAULTS = {
    "a place that stays taken": mock.patch.object(eviction, "give_back", _nothing),
    "a key that still waits": mock.patch.object(insertion, "_leave_waiting", _nothing),
    "an index with keys that have left": mock.patch.object(eviction, "_build_index", _nothing),
    "a count of steps": mock.patch.object(
        insertion, "_stored_counts", lambda handles, shape, buckets, entries: tf.zeros_like(entries)
    ),
    "a place that two keys take": mock.patch.object(
        places, "_numbers_within", lambda buckets: tf.zeros_like(buckets, tf.int32)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_finds_a_fault(fault: str) -> None:
    with anew(), FAULTS[fault], pytest.raises((AssertionError, tf.errors.InvalidArgumentError)):
        test_streams_as_in_plain_python("both")
