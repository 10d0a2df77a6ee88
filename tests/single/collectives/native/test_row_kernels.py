"""The ops on rows of the native exchanges, against the TensorFlow ops that they replace: equal in bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.collectives.chosen import BACKENDS, backend, choose
from parallax_runner.collectives.row_kernels import RowKernels
from parallax_runner.rewrite.every_route.merge import sum_by_position
from parallax_runner.routes.alltoall.add_up import merge_message
from parallax_runner.routes.alltoall.by_table import cut
from parallax_runner.routes.alltoall.request import first_rows, keys_of, requested, requests
from parallax_runner.routes.alltoall.row_exchange import Exchange, Message, Table, side

FLOATS = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(scope="module")
def kernels() -> RowKernels:
    """The native ops. Compiles the library if the cache does not have it."""
    found = BACKENDS["native"].row_kernels()
    assert found is not None
    return found


@pytest.fixture
def native(kernels: RowKernels) -> Iterator[None]:
    """Makes the graphs that a test builds use the native ops."""
    before = backend()
    choose(BACKENDS["native"])
    yield
    choose(before)


def values_of(build: Callable[[], Sequence[tf.Tensor]]) -> list[Any]:
    """Runs the tensors that `build` returns in a graph of their own."""
    with tf.Graph().as_default(), tf.Session() as session:
        found: list[Any] = session.run(list(build()))
        return found


def without_kernels(build: Callable[[], Sequence[tf.Tensor]]) -> list[Any]:
    """The same, by TensorFlow's ops."""
    before = backend()
    assert BACKENDS["horovod"].row_kernels() is None
    choose(BACKENDS["horovod"])
    try:
        return values_of(build)
    finally:
        choose(before)


def assert_equal_bits(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Compares dtypes, shapes and bits."""
    assert [(one.dtype, one.shape) for one in found] == [(one.dtype, one.shape) for one in expected]
    assert [one.tobytes() for one in found] == [one.tobytes() for one in expected]


def tables_of(rows: Sequence[int]) -> list[Table]:
    """Tables with rows of one number."""
    return [Table(f"table_{number}", count, (1,), tf.float32) for number, count in enumerate(rows)]


IDS = {
    "nothing": ([7], [0]),
    "one table": ([50], [200]),
    "repeated": ([3, 2], [500, 300]),
    "an empty table among others": ([40, 9, 1000], [30, 0, 700]),
    "long ids": ([70_000, 2**24 + 1], [900, 900]),
    "keys beyond int32": ([2**30, 2**30, 2**30], [60, 60, 60]),
}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("rows", "counts"), IDS.values(), ids=IDS)
@pytest.mark.usefixtures("native")
def test_distinct_ids_and_positions(rows: list[int], counts: list[int], dtype: str) -> None:
    random = np.random.default_rng(1)
    ids = [random.integers(0, high, count).astype(dtype) for high, count in zip(rows, counts, strict=True)]

    def build() -> list[tf.Tensor]:
        keys = keys_of(tables_of(rows), [tf.constant(each) for each in ids], ranks=3)
        return [keys.keys, keys.positions.whole, keys.positions.lengths, *keys.positions.parts]

    assert_equal_bits(values_of(build), without_kernels(build))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("rows", "counts"), IDS.values(), ids=IDS)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.usefixtures("native")
def test_requests_of_owners(ranks: int, rows: list[int], counts: list[int], dtype: str) -> None:
    random = np.random.default_rng(6)
    ids = [random.integers(0, high, count).astype(dtype) for high, count in zip(rows, counts, strict=True)]
    starts = first_rows(tables_of(rows), ranks)

    def build() -> list[tf.Tensor]:
        keys = keys_of(tables_of(rows), [tf.constant(each) for each in ids], ranks)
        message, sent = requests(keys, starts, ranks)
        return [message, sent.ranks.whole, sent.ranks.lengths, sent.counts]

    assert_equal_bits(values_of(build), without_kernels(build))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("came_counts", [[0, 0], [1, 0], [300, 200]], ids=str)
@pytest.mark.usefixtures("native")
def test_requests_that_arrive(came_counts: list[int], dtype: str) -> None:
    starts = [0, 40, 40, 41, 1000]  # a table without own rows, and one with a single row
    places = np.random.default_rng(7).integers(0, starts[-1], sum(came_counts)).astype(dtype)

    def build() -> list[tf.Tensor]:
        arrived, own = requested(tf.constant(places), tf.constant(came_counts), starts)
        return [arrived.ranks.whole, arrived.ranks.lengths, arrived.counts, own.whole, *own.parts]

    assert_equal_bits(values_of(build), without_kernels(build))


@pytest.mark.usefixtures("native")
def test_ids_of_different_shapes_and_dtypes() -> None:
    def build() -> list[tf.Tensor]:
        ids = [tf.constant([[5, 0], [5, 2]]), tf.constant(3, tf.int64), tf.constant([[[1], [0]]], tf.int64)]
        keys = keys_of(tables_of([6, 4, 2]), ids, ranks=2)
        return [keys.keys, keys.positions.whole, keys.positions.lengths]

    assert_equal_bits(values_of(build), without_kernels(build))


@pytest.mark.parametrize(("ids", "table", "rows", "wrong"), [([[6], [0]], 0, 6, 6), ([[5], [1, -1, 4]], 1, 4, -1)])
@pytest.mark.usefixtures("native")
def test_an_id_that_is_no_row_is_refused_with_the_name_of_its_table(
    ids: list[list[int]], table: int, rows: int, wrong: int
) -> None:
    expected = rf"no row of the variable .* \[«table_{table}»\] \[{rows}\] \[{wrong}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
        values_of(lambda: [keys_of(tables_of([6, 4]), [tf.constant(each) for each in ids], ranks=2).keys])


def ranks_of_rows(case: str, rows: int, ranks: int) -> np.ndarray:
    """The rank of each row."""
    if case == "one rank":
        return np.full(rows, ranks - 1, np.int32)
    return np.random.default_rng(2).integers(0, ranks, rows).astype(np.int32)


@pytest.mark.parametrize("case", ["one rank", "all ranks"])
@pytest.mark.parametrize("rows", [0, 1, 400])
@pytest.mark.usefixtures("native")
def test_places_in_a_message(case: str, rows: int) -> None:
    ranks = ranks_of_rows(case, rows, 4)

    def build() -> list[tf.Tensor]:
        counts = np.stack([np.bincount(ranks, minlength=4)], axis=1).astype(np.int32)
        return [side(tf.constant(ranks), tf.constant(counts)).places().whole]

    assert_equal_bits(values_of(build), without_kernels(build))


def random_rows(count: int, row_shape: Sequence[int], dtype: str) -> np.ndarray:
    """Rows whose sums are rounded, with zeros of both signs among them."""
    values = np.random.default_rng(count).normal(size=(count, *row_shape)) * 3
    return np.where(abs(values) < 0.3, np.copysign(0.0, values), values).astype(tf.as_dtype(dtype).as_numpy_dtype)


ROW_SHAPES: list[tuple[int, ...]] = [(), (1,), (3, 2)]
COUNTS = {"nothing": [0, 0], "one table": [300], "an empty table": [200, 0, 77]}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_sums_in_a_message(kernels: RowKernels, counts: list[int], dtype: str) -> None:
    random = np.random.default_rng(3)
    positions, lengths = [], []
    for count in counts:
        distinct, numbers = np.unique(random.integers(0, 1 + count // 9, count), return_inverse=True)
        positions.append(numbers.astype(np.int32))
        lengths.append(len(distinct))
    places = random.permutation(sum(lengths)).astype(np.int32)
    values = [[random_rows(count, row_shape, dtype) for count in counts] for row_shape in ROW_SHAPES]

    def packed(rows: list[np.ndarray]) -> tf.Tensor:
        return kernels.pack_sums([tf.constant(one) for one in rows], positions, tf.constant(lengths), places)

    def reference(rows: list[np.ndarray]) -> tf.Tensor:
        sums = [
            sum_by_position(tf.constant(one), tf.constant(each), tf.constant(length))
            for one, each, length in zip(rows, positions, lengths, strict=True)
        ]
        return tf.dynamic_stitch(tf.split(places, lengths), sums)

    assert_equal_bits(
        values_of(lambda: [packed(rows) for rows in values]), values_of(lambda: [reference(rows) for rows in values])
    )


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "bool"])
@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
def test_looked_up_rows(kernels: RowKernels, id_dtype: str, dtype: str) -> None:
    random = np.random.default_rng(4)
    shapes, lengths = [(20, 3), (), (0,), (50,)], [12, 1, 0, 9]
    as_dtype = tf.as_dtype(dtype).as_numpy_dtype
    messages = [random_rows(30, row_shape, "float64").astype(as_dtype) for row_shape in ROW_SHAPES]
    places = random.integers(0, 30, sum(lengths)).astype(np.int32)
    ids = [np.zeros(shape, id_dtype) for shape in shapes]
    positions = [random.integers(0, max(1, most), one.size) for most, one in zip(lengths, ids, strict=True)]

    def build() -> list[tf.Tensor]:
        whole, given = np.concatenate(positions).astype(np.int32), [tf.constant(one) for one in ids]
        found = [kernels.unpack_rows(tf.constant(one), places, tf.constant(lengths), whole, given) for one in messages]
        return [rows for of_message in found for rows in of_message]

    def reference() -> list[tf.Tensor]:
        return [
            tf.gather(tf.constant(message), tf.reshape(tf.gather(of_table, each), one.shape))
            for message in messages
            for of_table, each, one in zip(tf.split(places, lengths), positions, ids, strict=True)
        ]

    assert_equal_bits(values_of(build), values_of(reference))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
@pytest.mark.parametrize("case", ["one rank", "all ranks", "nothing"])
@pytest.mark.usefixtures("native")
def test_sums_of_arrived_rows(case: str, id_dtype: str, dtype: str) -> None:
    """Each rank sends distinct ids, so that repeated ids come from different ranks."""
    random, ranks, rows, count = np.random.default_rng(5), 3, [40, 4, 400], 0 if case == "nothing" else 50
    senders = [2] if case == "one rank" else range(ranks)
    own_of = [{rank: random.permutation(most // 2)[:count] for rank in senders} for most in rows]
    ranks_by_table = [np.concatenate([np.full(len(own), rank) for rank, own in of.items()]) for of in own_of]
    counts = np.stack([np.bincount(of.astype(int), minlength=ranks) for of in ranks_by_table], axis=1).astype(np.int32)
    own = np.concatenate([np.concatenate(list(of.values())) for of in own_of]).astype(id_dtype)
    tables = tuple(Table(f"table_{number}", ranks * most, (), tf.float32) for number, most in enumerate(rows))

    class Plan:
        workers = ranks

    class Rewrite:
        plan = Plan

    def build() -> list[tf.Tensor]:
        arrived = side(tf.constant(np.concatenate(ranks_by_table).astype(np.int32)), tf.constant(counts))
        by_table = cut(tf.constant(own), arrived.ranks.lengths)
        exchange = Exchange(Rewrite, "push", tables, arrived, arrived, by_table, is_exact=True)  # type: ignore[arg-type]
        found = []
        for row_shape in ROW_SHAPES:
            rows_of_all = tf.constant(random_rows(len(own), row_shape, dtype))
            sums, ids = merge_message(Message((0, 1, 2), rows_of_all, arrived.places()), exchange)
            found += [sums.whole, ids.whole, sums.lengths, *ids.parts]
        return found

    assert_equal_bits(values_of(build), without_kernels(build))


def test_inputs_that_do_not_fit_are_refused(kernels: RowKernels) -> None:
    rows, ids = np.ones([2, 3], np.float32), np.zeros([2], np.int32)
    wrong = {
        "lengths": lambda: [kernels.pack_sums([rows], [ids], tf.constant([3]), ids)],
        "positions": lambda: [kernels.pack_sums([rows], [ids[:1]], tf.constant([2]), ids)],
        "table": lambda: [kernels.pack_sums([rows], [ids + 2], tf.constant([2]), ids)],
        "place": lambda: [kernels.pack_sums([rows], [ids], tf.constant([2]), ids + 2)],
        "position": lambda: kernels.unpack_rows(rows, ids, tf.constant([2]), ids[:1], [ids]),
        "outside": lambda: kernels.unpack_rows(rows, ids, tf.constant([2]), ids - 1, [ids]),
        "an id and a place": lambda: kernels.sum_arrived(rows, ids[:1], ids, tf.constant([2])),
        "negative": lambda: kernels.sum_arrived(rows, ids, ids - 1, tf.constant([2])),
        "the message": lambda: kernels.sum_arrived(rows, ids + 2, ids, tf.constant([2])),
        "ascending": lambda: [kernels.pack_ids(ids, ranks=2, first_rows=[0], dtype=tf.int32)[0]],
        "numbers of the ranks": lambda: [kernels.group_arrived(ids, tf.constant([1]), first_rows=[0])[0]],
        "no rank 5": lambda: [kernels.places_by_rank(tf.constant([0, 5]), 5)],
    }
    for expected, build in wrong.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
            values_of(build)
