"""A worker computes only its own examples where that is possible, and trains on the same examples as if it computed
all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from parallax_runner.graph.tf_data.fresh_copy import graph_of
from parallax_runner.graph.tf_data.function_state import FunctionState
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.train.feed import Feed

BATCH, EXAMPLES = 4, 40
STEPS, HALF = EXAMPLES // BATCH, EXAMPLES // 2
Map = Callable[[Any], Any]
Pipeline = Callable[[Map], Any]
TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.range(EXAMPLES, dtype="int64"), tf.range(EXAMPLES, dtype="int64") * 3), -1
)
FACTORS = tf.Variable([2, 3], dtype="int64")
INSERTED = tf.lookup.experimental.MutableHashTable("int64", "int64", -1)
GENERATOR = tf.random.Generator.from_seed(1)


def twins(x: Any) -> Any:
    return x, 2 * x


class Counted:
    """A map that counts its calls. It says that it keeps no state, so it may be called for some elements only."""

    def __init__(self) -> None:
        self.calls, self._lock = 0, threading.Lock()

    def __call__(self, number: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(self._called, [number], tf.int64, stateful=False), [])

    def _called(self, number: Any) -> Any:
        with self._lock:
            self.calls += 1
        return number * 3


def ragged(f: Map) -> Any:
    """Example i has i % 4 words, and one tag of five."""

    def features(x: Any) -> Any:
        tags = tf.SparseTensor([[x % 5]], [x + 1], [5])
        return {"id": f(x), "words": tf.RaggedTensor.from_tensor(tf.ones([1, x % 4], tf.int64) * x)[0], "tags": tags}

    return range_of().shuffle(EXAMPLES, seed=5).map(features).ragged_batch(BATCH)


def range_of(examples: int = EXAMPLES) -> Any:
    return tf.data.Dataset.range(examples)


def zipped(f: Map) -> Any:
    return tf.data.Dataset.zip({"a": range_of().map(f), "b": range_of(99).shuffle(9, seed=1)}).batch(BATCH)


def zipped_with_itself(f: Map) -> Any:
    """Both sides take the seeds of their orders from one generator."""
    numbers = range_of().shuffle(9, seed=5)
    return tf.data.Dataset.zip(numbers.map(f), numbers).batch(BATCH)


def zipped_with_a_cache(f: Map) -> Any:
    """In a pass, one rank can read the cache to its end, while another does not."""
    return tf.data.Dataset.zip(range_of().map(f).cache(), range_of(99)).batch(BATCH)


def cached_twice(f: Map) -> Any:
    """The second map has the cache as an argument."""
    cached = range_of().map(f).cache()
    return cached.map(lambda x: x + cached.cardinality()).batch(BATCH)


def cut(f: Map) -> Any:
    return range_of(99).skip(3).map(f).take(EXAMPLES + 8).skip(5).take(EXAMPLES).batch(BATCH)


# Each yields EXAMPLES examples in a pass, or a few more. The first ones do not need the examples of other ranks.
OWN: dict[str, Pipeline] = {
    "map": lambda f: range_of().map(f).batch(BATCH),
    "shuffle before": lambda f: range_of().shuffle(9, seed=5).map(f).batch(BATCH),
    "several": lambda f: range_of().shuffle(9, seed=5).map(f).prefetch(2).map(lambda x: x + 1).batch(BATCH),
    "prefetched batches": lambda f: range_of().map(f).batch(BATCH, drop_remainder=True).prefetch(2),
    "parallel": lambda f: range_of().map(f, num_parallel_calls=2).batch(BATCH, num_parallel_calls=2),
    "options": lambda f: range_of().map(f).with_options(of(threads=2)).map(lambda x: -x).batch(BATCH),
    "left over": lambda f: range_of(EXAMPLES + 2).map(f).batch(BATCH),
    "filter before": lambda f: range_of(EXAMPLES * 2).filter(lambda x: x % 2 > 0).map(f).batch(BATCH),
    "flat": lambda f: range_of(8).flat_map(lambda x: tf.data.Dataset.range(5 * x, 5 * x + 5)).map(f).batch(BATCH),
    "cache": lambda f: range_of().shuffle(9, seed=5).map(f).cache().map(lambda x: -x).batch(BATCH),
    "zip": zipped,
    "zip with itself": zipped_with_itself,
    "enumerate": lambda f: range_of().shuffle(9, seed=2).map(f).enumerate().batch(BATCH),
    "take": lambda f: range_of(99).map(f).take(EXAMPLES).batch(BATCH),
    "skip": lambda f: range_of(EXAMPLES + 3).map(f).skip(3).batch(BATCH),
    "skip and take": cut,
    "repeat": lambda f: range_of(EXAMPLES // 5).shuffle(9, seed=3).map(f).repeat(5).batch(BATCH),
    "reads": lambda f: range_of().map(lambda x: TABLE.lookup(x) + f(x) * FACTORS[x % 2]).batch(BATCH),
    "ragged": ragged,
}
ALL: dict[str, Pipeline] = {
    "shuffle behind": lambda f: range_of().map(f).shuffle(9, seed=5).batch(BATCH),
    "filter behind": lambda f: range_of(EXAMPLES * 2).map(f).filter(lambda x: x % 2 > 0).batch(BATCH),
    "uneven repeat": lambda f: range_of(5).map(f).repeat(8).batch(BATCH),
    "zip with a cache": zipped_with_a_cache,
    "cached twice": cached_twice,
    "batches inside": lambda f: range_of().map(f).batch(5).unbatch().batch(BATCH),
    "map of batches": lambda f: range_of().map(f).batch(BATCH).map(lambda x: x - tf.reduce_sum(x)),
    "random map behind": lambda f: range_of().map(f).map(drawn).batch(BATCH),
    "random map": lambda f: range_of().map(lambda x: drawn(f(x))).batch(BATCH),
    "any order": lambda f: range_of().map(f, num_parallel_calls=1, deterministic=False).batch(BATCH),
    "any order by options": lambda f: (
        range_of().map(f, num_parallel_calls=1).batch(BATCH).with_options(of(is_deterministic=False))
    ),
}
READ_AHEAD = 7  # examples


def of(*, threads: int = 0, is_deterministic: bool = True) -> Any:
    options = tf.data.Options()
    options.threading.private_threadpool_size, options.deterministic = threads, is_deterministic
    return options


def drawn(x: Any) -> Any:
    return x + tf.random.uniform([], 0, 1000, tf.int64, seed=4)


@pytest.fixture(autouse=True)
def no_global_seed() -> None:
    tf.random.set_seed(None)


def flat(batch: Any) -> list[Any]:
    """The features of a batch of tensors, as lists of examples."""
    return [dense(each) for each in tf.nest.flatten(batch)]


def dense(tensor: Any) -> list[Any]:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.to_list()
    return (tf.sparse.to_dense(tensor) if isinstance(tensor, tf.SparseTensor) else tensor).numpy().tolist()


def read(data: TfDataset, rank: int, ranks: int, steps: range) -> list[list[Any]]:
    """The batches of a rank in order, each as lists of examples. Ragged and sparse features are put together again."""
    feed, found = Feed(data, BATCH // ranks, rank, ranks), []
    for step in steps:
        arrays = feed.train_batches(step * BATCH)[0]
        features = []
        for name, feature in sorted(data.features.items()):
            if feature.kind == "ragged":
                words = tf.RaggedTensor.from_row_splits(arrays[f"{name}/values"], arrays[f"{name}/row_splits"])
                features.append(dense(words))
            elif feature.kind == "sparse":
                parts = [arrays[f"{name}/{part}"] for part in ("indices", "values", "dense_shape")]
                features.append(dense(tf.SparseTensor(*parts)))
            else:
                features.append(arrays[name].tolist())
        found.append(features)
    return found


@pytest.mark.parametrize("name", [*OWN, *ALL])
def test_a_rank_computes_its_own_examples_where_that_is_possible(name: str) -> None:
    """A rank trains on the same examples in the same order as if it computed all, also where it begins later."""
    make = {**OWN, **ALL}[name]
    plain = make(Counted())
    expected = [batch for _ in range(3) for batch in map(flat, plain) if len(batch[0]) == BATCH]
    assert len(expected) == 3 * STEPS
    for rank, ranks, first in ((0, 2, 0), (1, 2, 0), (3, 4, STEPS + 3)):
        f = Counted()
        data = TfDataset.of(make(f), pass_steps=STEPS, exact=False)
        own = [[feature[rank::ranks] for feature in batch] for batch in expected]
        if first == 0:
            assert read(data, rank, ranks, range(STEPS)) == own[:STEPS]
            needed = HALF if name in OWN else EXAMPLES - 1  # the last one can be another rank's
            assert f.calls >= needed and (f.calls <= HALF + READ_AHEAD or name in ALL)
            first = STEPS
        if "random" not in name:  # later passes draw what earlier passes have left
            assert read(data, rank, ranks, range(first, 2 * STEPS + 3)) == own[first : 2 * STEPS + 3]


@pytest.mark.parametrize(
    ("make", "examples", "calls"),
    [
        (lambda f: range_of(29).filter(lambda x: x != 3).map(f).shuffle(9, seed=1).cache().batch(BATCH), 28, 0),
        (lambda f: range_of(29).filter(lambda x: x != 3).map(f).batch(BATCH, drop_remainder=True), 28, 0),
        (lambda f: range_of(29).filter(lambda x: x != 3).map(f).batch(BATCH, drop_remainder=True).map(twins), 28, 28),
        (lambda f: range_of(29).filter(lambda x: x != 3).map(f).batch(BATCH).map(twins), 28, 28),
        (lambda f: range_of(29).map(f).filter(lambda x: x != 9).batch(BATCH), 28, 29),
    ],
)
def test_examples_are_counted_without_computing_them(make: Pipeline, examples: int, calls: int) -> None:
    f = Counted()
    assert TfDataset.of(make(f), exact=False).train_size == examples and f.calls == calls


def test_a_cache_in_a_file_has_all_examples(tmp_path: Path) -> None:
    """A run with another number of ranks can read it."""
    f = Counted()
    data = TfDataset.of(range_of().map(f).cache(str(tmp_path / "cache")).batch(BATCH), exact=False)
    assert read(data, 0, 2, range(STEPS + 1))[-1] == [[0, 6]] and f.calls == EXAMPLES
    assert read(data, 1, 2, range(STEPS))[-1] == [[37 * 3, 39 * 3]] and f.calls == EXAMPLES


def test_records_of_files(tmp_path: Path) -> None:
    """A rank reads all records and parses its own."""
    for name in "ab":
        (tmp_path / name).write_text("".join(f"{number}\n" for number in range(20)))
    f, lines = Counted(), tf.data.TextLineDataset([str(tmp_path / name) for name in "ab"])
    data = TfDataset.of(
        lines.map(lambda line: f(tf.strings.to_number(line, tf.int64))).batch(BATCH), exact=False, pass_steps=STEPS
    )
    assert read(data, 1, 2, range(STEPS)) == [[[3 + 12 * step, 9 + 12 * step]] for step in range(5)] * 2
    assert 0 <= f.calls - HALF <= READ_AHEAD


@tf.function
def called(x: Any) -> Any:
    return x * 2


def asserting(x: Any) -> Any:
    tf.debugging.assert_less(x, tf.constant(9, tf.int64))
    return x


def inserting(x: Any) -> Any:
    INSERTED.insert(x, x)
    return x


def printing(x: Any) -> Any:
    tf.print(x)
    return x


@pytest.mark.parametrize(
    ("function", "depends"),
    [
        (lambda x: x + 1, False),
        (called, False),
        (lambda x: tf.cond(x > 1, lambda: called(x), lambda: x), False),
        (lambda x: tf.while_loop(lambda y: y < 9, lambda y: y + 1, [x])[0], False),
        (asserting, False),
        (lambda x: tf.random.stateless_uniform([], [x, 1]), False),
        (TABLE.lookup, False),
        (lambda x: FACTORS[x], False),
        (lambda x: tf.gather(FACTORS, x), False),
        (drawn, True),
        (lambda x: tf.cond(x > 1, lambda: drawn(x), lambda: x), True),
        (lambda x: tf.while_loop(lambda y: y < 9, lambda y: drawn(y) + 1, [x])[0], True),
        (lambda x: GENERATOR.uniform([]), True),
        (lambda x: tf.py_function(lambda y: y, [x], tf.int64), True),
        (lambda x: tf.numpy_function(lambda y: y, [x], tf.int64), True),
        (lambda x: tf.numpy_function(lambda y: y, [x], tf.int64, stateful=False), False),
        (lambda x: FACTORS[0].assign(x)[0], True),
        (inserting, True),
        (printing, True),
        (lambda x: tf.timestamp(), True),
    ],
)
def test_functions_whose_calls_depend_on_each_other(function: Map, depends: bool) -> None:
    assert state_of(range_of(3).map(function)) == [depends]


def test_a_read_depends_on_calls_that_write() -> None:
    numbers = range_of(3)
    assert state_of(numbers.map(INSERTED.lookup)) == [False]
    assert state_of(numbers.map(inserting).map(INSERTED.lookup)) == [True, True]
    assert state_of(numbers.map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)).map(TABLE.lookup)) == [True, True]


def state_of(dataset: Any) -> list[bool]:
    """What is known of the functions of each map in the pipeline."""
    graph_def = graph_of(dataset)
    state = FunctionState(graph_def)
    return [state.calls_depend(node) for node in graph_def.node if node.op == "MapDataset"]
