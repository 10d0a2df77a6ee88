"""Replicas share out the data of `tf.data` pipelines in the graph: no example twice, and none lost."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.shard import create_num_shards_and_shard_id, shard
from tests.single.small_models import infos, planned

EXAMPLES = 24
FILES = 6
Dataset = tf.data.Dataset


def numbers() -> Dataset:
    return Dataset.range(EXAMPLES)


def before_map() -> Dataset:
    return shard(numbers()).map(lambda x: x + 0)


def after_map() -> Dataset:
    return shard(numbers().map(lambda x: x + 0, num_parallel_calls=2)).prefetch(1)


def before_batch() -> Dataset:
    return shard(numbers()).batch(4)


def after_batch() -> Dataset:
    return shard(numbers().batch(2))


def after_shuffle() -> Dataset:
    return shard(numbers().shuffle(EXAMPLES)).batch(3)


def file_names() -> Dataset:
    return Dataset.from_tensor_slices([f"{os.environ['SHARD_TEST_FILES']}/{number}.txt" for number in range(FILES)])


def lines_of(name: tf.Tensor) -> Dataset:
    return tf.data.TextLineDataset(name).map(lambda line: tf.strings.to_number(line, tf.int64))


def files_before_interleave() -> Dataset:
    return shard(file_names()).interleave(lines_of, cycle_length=2, num_parallel_calls=2)


def files_after_interleave() -> Dataset:
    return shard(file_names().interleave(lines_of, cycle_length=3, block_length=2)).batch(5)


def inside_interleave() -> Dataset:
    return file_names().interleave(lambda name: shard(lines_of(name)), cycle_length=2)


def captured_by_a_filter() -> Dataset:
    num_shards, shard_id = create_num_shards_and_shard_id()
    return numbers().filter(lambda x: tf.equal(x % num_shards, shard_id))


def made_inside_a_filter() -> Dataset:
    def is_mine(x: tf.Tensor) -> tf.Tensor:
        num_shards, shard_id = create_num_shards_and_shard_id()
        return tf.equal(x % num_shards, shard_id)

    return numbers().filter(is_mine)


def made_inside_a_map() -> Dataset:
    def with_numbers(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return x, *create_num_shards_and_shard_id()

    return numbers().map(with_numbers).filter(lambda x, n, i: tf.equal(x % n, i)).map(lambda x, n, i: x)


def captured_two_functions_deep() -> Dataset:
    num_shards, shard_id = create_num_shards_and_shard_id()

    def some_of_two(x: tf.Tensor) -> Dataset:
        return Dataset.range(2 * x, 2 * x + 2).filter(lambda y: tf.equal(y % num_shards, shard_id))

    return Dataset.range(EXAMPLES // 2).flat_map(some_of_two)


def in_a_function_called_from_a_map() -> Dataset:
    @tf.function(autograph=False)
    def remainder(x: tf.Tensor) -> tf.Tensor:
        num_shards, shard_id = create_num_shards_and_shard_id()
        return x % num_shards - shard_id

    return numbers().map(lambda x: (x, remainder(x))).filter(lambda x, r: tf.equal(r, 0)).map(lambda x, r: x)


def to_a_callback() -> Dataset:
    dataset = shard(numbers()).map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
    return dataset.map(lambda x: tf.reshape(x, []))


PIPELINES: dict[str, Callable[[], Dataset]] = {
    make.__name__: make
    for make in (
        *(before_map, after_map, before_batch, after_batch, after_shuffle),
        *(files_before_interleave, files_after_interleave, inside_interleave),
        *(captured_by_a_filter, made_inside_a_filter, made_inside_a_map, captured_two_functions_deep),
        *(in_a_function_called_from_a_map, to_a_callback),
    )
}


def one_shot(dataset: Dataset) -> tf.Tensor:
    return tf.data.make_one_shot_iterator(dataset).get_next()


def initializable(dataset: Dataset) -> tf.Tensor:
    return tf.data.make_initializable_iterator(dataset).get_next()


def initialized_with_tables(dataset: Dataset) -> tf.Tensor:
    iterator = tf.data.make_initializable_iterator(dataset)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def reinitializable(dataset: Dataset) -> tf.Tensor:
    types, shapes = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)
    iterator = tf.data.Iterator.from_structure(types, shapes)
    iterator.make_initializer(dataset)
    return iterator.get_next()


ITERATORS = {make.__name__: make for make in (one_shot, initializable, initialized_with_tables, reinitializable)}
# Each of them in the default tier; all other pairs are slow tests (tests/slow.toml).
FEW = set(zip(PIPELINES, itertools.cycle(ITERATORS)))
PAIRS = [
    pytest.param(*pair, id="-".join(pair) if pair in FEW else "-".join(("more", *pair)))
    for pair in itertools.product(PIPELINES, ITERATORS)
]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples, evenly dealt out to files."""
    for number in range(FILES):
        lines = "".join(f"{example}\n" for example in range(EXAMPLES) if example % FILES == number)
        (tmp_path / f"{number}.txt").write_text(lines)
    monkeypatch.setenv("SHARD_TEST_FILES", str(tmp_path))


def captured_with(examples: Callable[[], tf.Tensor]) -> SingleDeviceGraph:
    """A model whose served output «examples» is what the pipeline gives, [any]."""

    def build(_: dict[str, tf.Tensor]) -> dict[str, Any]:
        found = tf.reshape(examples(), [-1])
        weights = tf.get_variable("weights", [EXAMPLES], tf.float64)
        loss = tf.reduce_mean(tf.gather(weights, found))
        train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
        return {"loss": loss, "train_op": train_op, "outputs": {"examples": found}}

    return capture(build, {}, seed=1)


def seen(session: tf.Session, examples: str) -> list[int]:
    """All examples of one replica, in its order."""
    found: list[int] = []
    try:
        while True:
            found += session.run(examples).tolist()
    except tf.errors.OutOfRangeError:
        return found


def seen_by_replicas(single: SingleDeviceGraph, workers: int, replicas_per_worker: int = 1) -> list[list[int]]:
    plan = planned(single, "mpi" if workers > 1 else "local", workers=workers)
    plan = dataclasses.replace(plan, replicas_per_worker=replicas_per_worker)
    found = []
    for rank in range(workers):
        graph = rewrite_for_rank(single, plan, rank=rank, seed=1)
        with tf.Session(graph=graph.graph) as session:
            session.run(graph.initialize)
            found += [seen(session, f"{prefix}outputs/examples:0") for prefix in graph.prefixes]
    assert len(found) == plan.replicas
    return found


def assert_shared_out(parts: list[list[int]]) -> None:
    assert all(parts), "every replica has some"
    assert sorted(example for part in parts for example in part) == list(range(EXAMPLES))


@pytest.mark.parametrize(("pipeline", "iterator"), PAIRS)
def test_every_example_is_seen_once(pipeline: str, iterator: str) -> None:
    single = captured_with(lambda: ITERATORS[iterator](PIPELINES[pipeline]()))
    gc.collect()  # What only the graph of the model's function held is gone.
    for workers in (1, 2, 3):
        assert_shared_out(seen_by_replicas(single, workers))
    assert_shared_out(seen_by_replicas(single, 2, replicas_per_worker=2))


@pytest.mark.parametrize(("pipeline", "iterator"), PAIRS)
def test_two_builds_have_the_same_fingerprint(pipeline: str, iterator: str) -> None:
    """A process counts functions and callbacks; that is not to keep a worker from taking the driver's plan."""
    builds = [captured_with(lambda: ITERATORS[iterator](PIPELINES[pipeline]())) for _ in range(2)]
    assert builds[0].fingerprint == builds[1].fingerprint


def test_another_pipeline_has_another_fingerprint() -> None:
    once, twice = (captured_with(lambda n=n: one_shot(before_map().repeat(n))) for n in (1, 2))
    assert once.fingerprint != twice.fingerprint


def test_shard_keeps_every_element_at_a_distance() -> None:
    parts = seen_by_replicas(captured_with(lambda: one_shot(before_map())), 3)
    assert parts == [list(range(rank, EXAMPLES, 3)) for rank in range(3)]


def test_the_graph_of_the_user_is_that_of_one_device() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(create_num_shards_and_shard_id()) == (1, 0)
        element = one_shot(shard(numbers()))
        assert [session.run(element) for _ in range(EXAMPLES)] == list(range(EXAMPLES))


def test_no_static_shape_depends_on_the_numbers() -> None:
    def padded() -> tf.Tensor:
        num_shards, shard_id = create_num_shards_and_shard_id()
        return tf.fill(tf.reshape(num_shards, [1]), shard_id)

    def checked() -> tf.Tensor:
        shape = padded().shape
        assert shape.as_list() == [None]
        return padded()

    single = captured_with(checked)
    plan = planned(single, "mpi", workers=3)
    with tf.Session(graph=rewrite_for_rank(single, plan, rank=2, seed=1).graph) as session:
        assert session.run("outputs/examples:0").tolist() == [2, 2, 2]


@contextmanager
def control_flow(version: int) -> Iterator[None]:
    before = tf.control_flow_v2_enabled()
    (tf.enable_control_flow_v2 if version == 2 else tf.disable_control_flow_v2)()
    try:
        yield
    finally:
        (tf.enable_control_flow_v2 if before else tf.disable_control_flow_v2)()


def in_a_branch() -> tf.Tensor:
    iterator = tf.data.make_initializable_iterator(shard(numbers()))
    coin = tf.less(tf.random.uniform([]), 0.5)
    return tf.cond(coin, iterator.get_next, iterator.get_next)


def in_a_loop() -> tf.Tensor:
    iterator = tf.data.make_initializable_iterator(captured_by_a_filter().batch(2))

    def body(turn: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return turn + 1, tf.concat([found, iterator.get_next()], 0)

    start = (tf.constant(0), tf.zeros([0], tf.int64))
    shapes = (tf.TensorShape([]), tf.TensorShape([None]))
    return tf.while_loop(lambda turn, _: turn < 2, body, start, shapes)[1]


def numbers_in_a_branch() -> tf.Tensor:
    element = one_shot(shard(numbers()))
    return tf.cond(element < 0, lambda: create_num_shards_and_shard_id()[0], lambda: element)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("examples", [in_a_branch, in_a_loop, numbers_in_a_branch])
def test_control_flow(examples: Callable[[], tf.Tensor], version: int) -> None:
    with control_flow(version):
        single = captured_with(examples)
    for workers in (1, 2, 3):
        assert_shared_out(seen_by_replicas(single, workers))
    assert_shared_out(seen_by_replicas(single, 1, replicas_per_worker=2))


def test_numbers_in_both_branches_and_loops_are_the_replicas_own() -> None:
    def both() -> tf.Tensor:
        num_shards, _ = create_num_shards_and_shard_id()

        def body(turn: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return turn + 1, total + num_shards + create_num_shards_and_shard_id()[1]

        total = tf.while_loop(lambda turn, _: turn < 2, body, (tf.constant(0), tf.constant(0, tf.int64)))[1]
        return tf.cond(total > 0, lambda: create_num_shards_and_shard_id()[0] * 10 + total, lambda: total)

    for version in (1, 2):
        with control_flow(version):
            single = captured_with(both)
        plan = planned(single, "mpi", workers=3)
        with tf.Session(graph=rewrite_for_rank(single, plan, rank=2, seed=1).graph) as session:
            assert session.run("outputs/examples:0").tolist() == [3 * 10 + 2 * (3 + 2)]


def test_a_graph_of_reference_variables() -> None:
    tf.disable_resource_variables()
    try:
        single = captured_with(lambda: one_shot(made_inside_a_filter()))
    finally:
        tf.enable_resource_variables()
    assert_shared_out(seen_by_replicas(single, 2))


def test_a_graph_that_went_through_a_file(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        tf.identity(one_shot(captured_two_functions_deep()), name="element")
        tf.train.export_meta_graph(str(tmp_path / "graph.meta"), as_text=True)

    def imported() -> tf.Tensor:
        tf.train.import_meta_graph(str(tmp_path / "graph.meta"))
        return tf.get_default_graph().get_tensor_by_name("element:0")

    assert_shared_out(seen_by_replicas(captured_with(imported), 3))


def test_an_iterator_that_has_to_be_fed_waits_for_its_maker() -> None:
    def fed() -> tf.Tensor:
        last = tf.placeholder(tf.int64, [], name="last")
        return initializable(shard(Dataset.range(last)))

    single = captured_with(fed)
    graph = rewrite_for_rank(single, planned(single, "mpi"), rank=1, seed=1)
    with tf.Session(graph=graph.graph) as session:
        session.run(graph.initialize)
        session.run("MakeIterator", {"last:0": 4})
        assert session.run("outputs/examples:0").tolist() == [1]


def test_an_iterator_that_looks_something_up_starts_after_the_tables(tmp_path: Path) -> None:
    """Both are initializers that TensorFlow 1 collects; run together, the lookup mostly came before the table."""
    words = tmp_path / "words.txt"
    words.write_text("".join(f"word {number}\n" for number in range(20_000)))

    def looked_up() -> tf.Tensor:
        entries = tf.lookup.TextFileInitializer(
            str(words), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        )
        last = tf.lookup.StaticHashTable(entries, -1).lookup(tf.constant("word 7"))
        return initialized_with_tables(numbers().map(lambda number: number + last))

    single = captured_with(looked_up)
    graph = rewrite_for_rank(single, planned(single, "mpi"), rank=0, seed=1)
    with tf.Session(graph=graph.graph) as session:
        session.run(graph.initialize)
        session.run(graph.open_late_inputs)
        assert session.run("outputs/examples:0").tolist() == [7]


def test_an_update_that_reads_the_replicas_number_is_refused() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        loss = tf.reduce_sum(weights * features["x"])
        optimizer = tf.train.GradientDescentOptimizer(1.0)
        pairs = optimizer.compute_gradients(loss)
        shard_id = tf.cast(create_num_shards_and_shard_id()[1], tf.float64)
        pairs = [(gradient * (1 + shard_id), variable) for gradient, variable in pairs]
        return {"loss": loss, "train_op": optimizer.apply_gradients(pairs)}

    with pytest.raises(PlanError, match=r"shard_id.*differs by rank"):
        infos(capture(build, {"x": ((2,), "float64")}, seed=1))


def test_dividing_by_the_number_of_replicas_is_allowed() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        loss = tf.reduce_sum(weights * features["x"])
        optimizer = tf.train.GradientDescentOptimizer(1.0)
        num_shards = tf.cast(create_num_shards_and_shard_id()[0], tf.float64)
        pairs = [(gradient * num_shards, variable) for gradient, variable in optimizer.compute_gradients(loss)]
        return {"loss": loss, "train_op": optimizer.apply_gradients(pairs)}

    assert set(infos(capture(build, {"x": ((2,), "float64")}, seed=1))) == {"weights"}
