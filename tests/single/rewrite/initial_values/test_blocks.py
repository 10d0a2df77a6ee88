"""Initial values that are made in blocks of rows equal, bit for bit, those that are made whole.

Also of parallax_runner.rewrite.initial_values.draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis import initial_rows
from parallax_runner.analysis.initial_rows import InitialRows
from parallax_runner.rewrite.initial_values import blocks
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.rewrite_state import Initializers
from parallax_runner.train.session_config import session_config

Shape = tuple[int, ...]
Values = Mapping[str, tf.Tensor]
# Rows of odd length, of the length of a group of random numbers, and with two dimensions.
SHAPES: tuple[Shape, ...] = ((101, 1), (103, 3), (98, 4), (67, 2, 5), (50, 64), (2, 131))
# Shapes, dtypes, rows of a block and numbers of ranks.
CASES: Mapping[str, tuple[Shape, str, int, int]] = {
    "float32": ((103, 3), "float32", 20, 3),
    "float64": ((98, 3), "float64", 7, 2),
    "more-bfloat16": ((103, 3), "bfloat16", 3, 3),
    "more-float16": ((67, 2, 5), "float16", 20, 7),
    "more-float16_rows_of_3": ((103, 3), "float16", 3, 2),
    "more-float64_many_rows": ((98, 3), "float64", 50, 3),
    "more-one_column": ((101, 1), "float32", 40, 2),
    "more-seven_ranks": ((103, 3), "float32", 20, 7),
    "more-rows_of_4": ((98, 4), "float32", 33, 3),
    "more-matrices": ((67, 2, 5), "float32", 9, 2),
    "more-fewer_rows_than_ranks": ((2, 131), "float32", 1, 3),
}
OF_GRAPHS = CASES | {"more-vector": ((101,), "float32", 7, 3)}
FUNCTIONS = [f"{'' if number < 2 else 'more-'}{number}" for number in range(12)]
GRAPH_INITIALIZERS: Mapping[str, Callable[[], tf.keras.initializers.Initializer]] = {
    "uniform": lambda: tf.random_uniform_initializer(-0.3, 0.7),
    "normal": lambda: tf.random_normal_initializer(0.1, 2.0),
    "truncated_normal": lambda: tf.truncated_normal_initializer(-0.2, 0.5),
    "scaled_truncated": lambda: tf.variance_scaling_initializer(2.0, "fan_in"),
    "scaled_untruncated": lambda: tf.variance_scaling_initializer(2.0, "fan_out", "untruncated_normal"),
    "scaled_uniform": lambda: tf.variance_scaling_initializer(0.5, "fan_avg", "uniform"),
    "glorot": lambda: tf.glorot_uniform_initializer(),
    "seeded": lambda: tf.random_uniform_initializer(0.0, 1.0, seed=5),
    "zeros": lambda: tf.zeros_initializer(),
    "ones": lambda: tf.ones_initializer(),
    "constant": lambda: tf.constant_initializer(0.37),
}
KERAS_INITIALIZERS: Mapping[str, Callable[[], keras.Initializer]] = {
    "uniform": lambda: keras.initializers.RandomUniform(-0.3, 0.7, seed=3),
    "normal": lambda: keras.initializers.RandomNormal(0.1, 2.0, seed=4),
    "truncated_normal": lambda: keras.initializers.TruncatedNormal(-0.2, 0.5, seed=5),
    "he_normal": lambda: keras.initializers.HeNormal(seed=6),
    "glorot": lambda: keras.initializers.GlorotUniform(seed=7),
    "lecun": lambda: keras.initializers.LecunUniform(seed=8),
    "scaled_untruncated": lambda: keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal", seed=9),
    "zeros": lambda: keras.initializers.Zeros(),
    "ones": lambda: keras.initializers.Ones(),
    "constant": lambda: keras.initializers.Constant(0.37),
}


@pytest.fixture(autouse=True)
def all_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_rows, "SMALL_BYTES", 0)


def shards_of(name: str, value: tf.Tensor, ranks: int) -> list[Shard]:
    rows = int(value.shape[0])
    made = []
    for rank in range(ranks):
        count = len(range(rank, rows, ranks))
        shared_name = f"{name}/{ranks}/{rank}"
        handle = tf.raw_ops.VarHandleOp(
            dtype=value.dtype, shape=[count, *value.shape[1:]], shared_name=shared_name, name=shared_name
        )
        made.append(Shard(handle, rank, rows=count, device="", step=ranks))
    return made


def check_equal(values: Values, *, ranks: tuple[int, ...]) -> None:
    """Compares the rows of each rank with those of the whole value."""
    graph = tf.get_default_graph()
    initializers, taken = Initializers(), {}
    for name, value in values.items():
        assert isinstance(initial_rows.initial_rows(value), InitialRows), (name, initial_rows.initial_rows(value))
        for count in ranks:
            for shard in shards_of(name, value, count):
                initializers.own.append(blocks.assign_initial(initializers, shard, value, is_cut=count > 1))
                taken[name, count, shard.offset] = shard.read()
    with tf.Session(graph=graph, config=session_config(2)) as session:
        session.run(initializers.own)
        own, whole = session.run(taken), session.run(values)
    for (name, count, rank), rows in own.items():
        expected = whole[name][rank::count]
        assert rows.dtype == expected.dtype
        assert rows.shape == expected.shape
        assert rows.tobytes() == expected.tobytes(), (name, count, rank, rows, expected)


def is_by_rows(value: tf.Tensor) -> bool:
    return isinstance(initial_rows.initial_rows(value), InitialRows)


def limited_to(rows: int, value: tf.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes blocks have this many rows of a value."""
    row_bytes = int(np.prod(value.shape.as_list()[1:])) * value.dtype.size
    monkeypatch.setattr(blocks, "BLOCK_BYTES", rows * row_bytes)


@pytest.mark.parametrize("case", OF_GRAPHS)
def test_initializers_of_graphs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, dtype, rows, ranks = OF_GRAPHS[case]
    with tf.Graph().as_default():
        tf.set_random_seed(11)
        values = {name: make()(shape, dtype=tf.as_dtype(dtype)) for name, make in GRAPH_INITIALIZERS.items()}
        limited_to(rows, values["uniform"], monkeypatch)
        check_equal(values, ranks=(1, ranks))


@pytest.mark.parametrize("case", CASES)
def test_initializers_of_keras(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, dtype, rows, ranks = CASES[case]
    with tf.Graph().as_default():
        values = {name: make()(shape, dtype=dtype) for name, make in KERAS_INITIALIZERS.items()}
        limited_to(rows, values["uniform"], monkeypatch)
        check_equal(values, ranks=(ranks,))


def random_function(draw: random.Random, shape: Shape, dtype: tf.DType) -> tf.Tensor:
    """Draws, constants and rows that all rows share, joined by elementwise ops."""
    row = np.random.default_rng(draw.randrange(1000)).normal(size=shape[1:])
    one_and_a_bit = tf.constant(1.1, tf.float64)
    found = [
        tf.random_uniform(shape, -1, 1, dtype),
        tf.random.stateless_normal(shape, [draw.randrange(99), 2], dtype=dtype),
        tf.truncated_normal(shape, dtype=dtype, seed=draw.randrange(99)),
        tf.fill(shape, tf.constant(0.3, dtype)),
        tf.constant(row, dtype),
        tf.constant(row[None], dtype),
        tf.constant(draw.uniform(-2, 2), dtype),
    ]
    joins: list[Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = [
        lambda one, other: one + other,
        lambda one, other: one * other,
        lambda one, other: one - other,
        lambda one, other: one / tf.maximum(tf.abs(other), tf.constant(0.1, dtype)),
        lambda one, other: tf.maximum(one, other),
        lambda one, other: tf.minimum(tf.square(one), tf.sqrt(tf.abs(other))),
        lambda one, other: tf.where_v2(one < other, tf.nn.relu(one), -other),
        lambda one, other: tf.cast(tf.cast(one, tf.float64) * one_and_a_bit, dtype) - other,
        lambda one, other: tf.squared_difference(tf.stop_gradient(one), tf.sign(other)),
    ]
    for _ in range(6):
        found.append(draw.choice(joins)(draw.choice(found), draw.choice(found)))
    return tf.maximum(found[0], found[-1] - found[-2])


@pytest.mark.parametrize("case", FUNCTIONS)
def test_random_elementwise_functions_of_draws(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = int(case.removeprefix("more-"))
    draw = random.Random(number)
    shape, dtype = draw.choice(SHAPES), draw.choice([tf.float32, tf.float64])
    with tf.Graph().as_default():
        tf.set_random_seed(number)
        made = {f"function_{one}": random_function(draw, shape, dtype) for one in range(5)}
        values = {name: value for name, value in made.items() if is_by_rows(value)}
        assert values
        limited_to(draw.choice([1, 2, 5, 12]), made["function_0"], monkeypatch)
        check_equal(values, ranks=(3,))


def test_equal_rows_are_not_made_for_other_ranks() -> None:
    with tf.Graph().as_default() as graph:
        value = tf.constant_initializer(0.1)([1000, 4], dtype=tf.float32)
        (*_, shard) = shards_of("table", value, 4)
        blocks.assign_initial(Initializers(), shard, value, is_cut=True)
        made = {op.type: op.outputs[0].shape for op in graph.get_operations() if op.type in ("BroadcastTo", "While")}
    assert made == {"BroadcastTo": [250, 4]}


def test_only_one_block_exists_at_a_time() -> None:
    with tf.Graph().as_default():
        initializers = Initializers()
        values = [tf.random_uniform([1000, 4]) for _ in range(2)]
        loops = [
            blocks.assign_initial(initializers, shard, value, is_cut=True)
            for number, value in enumerate(values)
            for shard in shards_of(f"table_{number}", value, 2)
        ]
        needed = [initial_rows.edit.ancestors([loop]) for loop in loops]
    assert all(before in needs for before, needs in zip(loops, needed[1:], strict=False))


def test_a_value_that_needs_all_rows_is_made_whole() -> None:
    with tf.Graph().as_default():
        drawn = tf.random_normal([20, 3], seed=1)
        value = drawn / tf.norm(drawn)
        shard = shards_of("table", value, 2)[1]
        initial = blocks.assign_initial(Initializers(), shard, value, is_cut=True)
        with tf.Session(config=session_config(2)) as session:
            whole, _ = session.run([value, initial])
            np.testing.assert_array_equal(session.run(shard.read()), whole[1::2])


def test_size_of_blocks() -> None:
    with tf.Graph().as_default():

        def rows_of(*shape: int, dtype: tf.DType = tf.float32) -> int:
            rows = initial_rows.initial_rows(tf.cast(tf.random_uniform(shape, dtype=dtype), tf.float32))
            assert isinstance(rows, InitialRows)
            return blocks.rows_at_once(rows)

        assert rows_of(10**6, 64) * 64 * 4 == blocks.BLOCK_BYTES <= 16 << 20
        assert rows_of(10**6, 64, dtype=tf.float64) * 64 * 8 == blocks.BLOCK_BYTES
        assert rows_of(10**6, 63) % 4 == 0
        assert rows_of(10, 10**8) == 1
