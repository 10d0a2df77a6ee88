"""What a step sends for each variable, in bytes, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.comm_options import Compression, Lookahead
from parallax_runner.plan.plan import Plan, Route
from parallax_runner.planning.choose import Choice
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.plans import plan_of
from tests.single.rewrite.one_device import OneDevice, batch, graph_of
from tests.single.small_models import BATCH, FEATURES, ROWS, WIDTH, Features, captured, clip, planned

NARROW_ROWS = 8
# Of the ids 1 1 4 5 three are distinct, of 1 1 1 4 two. Row i is rank i mod 2's, so rank 0 asks for two and for one.
IDS, FEW = np.array([1, 1, 4, 5]), np.array([1, 1, 1, 4])
# A row of «table» is 2 × 8 bytes, of «narrow» 8; an id 4 bytes (int32) as it is looked up and gathered, 8 as pushed.
LOOKED_UP = {"table": 3 * 4 + 3 * 16, "narrow": 2 * 4 + 2 * 8}
PUSHED = {"table": 3 * 16 + 3 * 8, "narrow": 2 * 8 + 2 * 8}
GATHERED = {"table": 3 * 16 + 3 * 4, "narrow": 2 * 8 + 2 * 4}
DENSE = {"weights": 2 * 8, "bias": 8}
NOTHING = {"global_step": 0, None: 0}
ON_SERVERS = {name: LOOKED_UP[name] + PUSHED[name] for name in LOOKED_UP}


def two_tables(features: Features) -> tf.Tensor:
    """[BATCH]: «table» [ROWS, WIDTH] and «narrow» [NARROW_ROWS] by other ids, «weights» [WIDTH], «bias» []."""
    table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    narrow = tf.get_variable("narrow", [NARROW_ROWS], tf.float64)
    weights = tf.get_variable("weights", [WIDTH], tf.float64)
    bias = tf.get_variable("bias", [], tf.float64, initializer=tf.zeros_initializer())
    rows = tf.nn.embedding_lookup(table, features["ids"]) * weights
    return tf.reduce_sum(rows, axis=1) + tf.gather(narrow, features["few"]) + bias


def single_of() -> SingleDeviceGraph:
    return captured(two_tables, optimizer="gradient_descent", features=FEATURES | {"few": ((BATCH,), "int32")})


def planned_by(single: SingleDeviceGraph, comm: str, **fields: Any) -> Plan:
    return plan_of(classify(single), comm=comm, fingerprint=single.fingerprint, **{"partitions": 2} | fields)


def sent(plan: Plan, single: SingleDeviceGraph, **options: Any) -> dict[str | None, float]:
    """Rank 0's bytes by variable; None for those of no variable alone."""
    device = OneDevice(rewrite_for_rank(single, plan, rank=0, seed=1, **options))
    device.initialize()
    fed = {
        device.there(0, features[name]): value
        for features in device.ranks[0].features
        for name, value in (batch(0) | {"ids": IDS, "few": FEW}).items()
    }
    return by_variable(plan, device.session.run(device.there(0, device.ranks[0].sent_bytes), fed))


def by_variable(plan: Plan, vector: np.ndarray) -> dict[str | None, float]:
    assert vector.dtype == np.float64
    return dict(zip([*(variable.name for variable in plan.variables), None], vector.tolist(), strict=True))


@pytest.mark.parametrize(
    ("comm", "workers", "expected"),
    [
        ("local", 1, dict.fromkeys([*LOOKED_UP, *DENSE], 0)),
        ("mpi", 2, GATHERED | DENSE),
        (
            "mpi",
            4,
            {name: 3 * size for name, size in GATHERED.items()} | {name: 1.5 * size for name, size in DENSE.items()},
        ),
        ("ps", 2, ON_SERVERS | {name: 2 * size for name, size in DENSE.items()}),
        ("hybrid", 2, ON_SERVERS | DENSE),
        ("hybrid", 4, ON_SERVERS | {name: 1.5 * size for name, size in DENSE.items()}),
    ],
)
def test_bytes_of_a_step(comm: str, workers: int, expected: dict[str | None, float]) -> None:
    single = single_of()
    assert sent(planned_by(single, comm, workers=workers), single) == pytest.approx(expected | NOTHING)


@pytest.mark.parametrize(("lookahead", "told_bytes"), [(Lookahead.OFF, 0), (Lookahead.ON, 1)])
def test_tables_that_share_an_exchange(lookahead: Lookahead, told_bytes: int, mirrored: None) -> None:
    """Ids, with lookahead a byte that says of each whether its row is late, and rows there and back: of «table» two go
    to the other rank and come from it, of «narrow» one."""
    single = single_of()
    id_bytes = 4 + told_bytes
    expected = {"table": 2 * id_bytes + 2 * 2 * 16, "narrow": id_bytes + 2 * 8} | DENSE | NOTHING
    assert sent(planned_by(single, "sharded", lookahead=lookahead), single) == expected


def test_rounded_means_share_an_exchange(mirrored: None) -> None:
    """Three values of 2 bytes in two parts of two, once as a part and once as its mean: the fourth is nobody's."""
    single = single_of()
    found = sent(planned_by(single, "mpi", compression=Compression.BF16), single)
    gathered = {"table": 3 * 2 * 2 + 3 * 4, "narrow": 2 * 2 + 2 * 4}
    assert found == gathered | {"weights": 4, "bias": 2, "global_step": 0, None: 2}


def test_rounded_rows_share_an_exchange(mirrored: None) -> None:
    single = single_of()
    found = sent(planned_by(single, "sharded", compression=Compression.BF16, lookahead=Lookahead.ON), single)
    assert found == {"table": 2 * 5 + 2 * 2 * 4, "narrow": 5 + 2 * 2, "weights": 4, "bias": 2} | {
        "global_step": 0,
        None: 2,
    }


@pytest.mark.parametrize("compression", Compression)
def test_sparse_gradients_that_are_allreduced(compression: Compression, mirrored: None) -> None:
    """All rows, and a number for each; the numbers are never rounded."""
    single = single_of()
    routes = {v.name: Route.ALLREDUCE if v.gradient != "none" else v.route for v in planned_by(single, "mpi").variables}
    choice = Choice(routes=routes, reasons=dict.fromkeys(routes, "a test"))
    found = sent(planned_by(single, "mpi", choice=choice, compression=compression), single)
    value_bytes = 8 if compression is Compression.OFF else 2
    rows = {"table": ROWS * (WIDTH * value_bytes + 8), "narrow": NARROW_ROWS * (value_bytes + 8)}
    dense = {"weights": 2 * value_bytes, "bias": value_bytes}
    padding = 0 if compression is Compression.OFF else value_bytes
    assert found == rows | dense | {"global_step": 0, None: padding}


def test_asynchronous_pushes() -> None:
    """As int32, the ids' own type."""
    single = single_of()
    pushed = {"table": 3 * 16 + 3 * 4, "narrow": 2 * 8 + 2 * 4}
    expected = {name: LOOKED_UP[name] + pushed[name] for name in pushed} | {name: 2 * DENSE[name] for name in DENSE}
    assert sent(planned_by(single, "ps", sync=False), single) == expected | NOTHING


def test_replicas_of_a_worker_look_up_each_for_itself_and_push_once() -> None:
    single = single_of()
    expected = {name: 2 * LOOKED_UP[name] + PUSHED[name] for name in PUSHED} | {name: 3 * DENSE[name] for name in DENSE}
    assert sent(planned_by(single, "ps", replicas_per_worker=2), single) == expected | NOTHING


@pytest.mark.parametrize("comm", ["ps", "hybrid"])
def test_whether_all_is_finite_is_asked_for_no_variable(comm: str) -> None:
    """One float32: by allreduce, or pushed."""
    single = single_of()
    plan = planned_by(single, comm)
    assert sent(plan, single, skip_nonfinite=True) == sent(plan, single) | {None: 4}


def test_bytes_of_a_follower_are_the_chiefs() -> None:
    single = captured()
    device = graph_of(single, "ps", workers=2, partitions=2)
    device.initialize()
    values = batch(0) | {"ids": IDS}
    vectors = [device.there(number, rank.sent_bytes) for number, rank in enumerate(device.ranks)]
    found = device.session.run(vectors, device.fed([values, values]))
    plan = planned(single, "ps", partitions=2)
    assert [by_variable(plan, vector) for vector in found] == [
        {"table": ON_SERVERS["table"], "weights": 2 * DENSE["weights"]} | NOTHING
    ] * 2


@pytest.mark.parametrize("workers", [2, 4])
def test_a_norm_that_leaves_servers_is_its_variables(workers: int) -> None:
    """One float64 to the chief, and from it to each of the others, who clip what they update themselves."""
    single = captured(process=clip)
    plan = planned(single, "hybrid", workers=workers, partitions=2)
    chief = OneDevice(rewrite_for_rank(single, plan, rank=0, seed=1))
    chief.initialize()
    vector = chief.session.run(chief.there(0, chief.ranks[0].sent_bytes), chief.fed([batch(0) | {"ids": IDS}]))
    dense = 2 * (workers - 1) / workers * DENSE["weights"]
    assert by_variable(plan, vector) == {"table": ON_SERVERS["table"] + workers * 8, "weights": dense} | NOTHING


def test_rows_that_leave_servers_during_the_update_are_their_variables() -> None:
    """The largest element cannot be found in parts on the servers: rows go to the chief."""

    def by_largest(gradients: list[Any]) -> list[Any]:
        sparse, dense = gradients
        values = sparse.values / tf.reduce_max(tf.abs(sparse.values))
        return [tf.IndexedSlices(values, sparse.indices, sparse.dense_shape), dense]

    def bytes_with(process: Callable[[list[Any]], list[Any]]) -> dict[str | None, float]:
        single = captured(process=process)
        device = graph_of(single, "ps", workers=2, partitions=2)
        step = edit.ancestors([device.there(0, device.ranks[0].train_op)])
        leaving = [op for op in step if "from_servers" in op.name]
        assert bool(leaving) == (process is by_largest)
        device.initialize()
        values = batch(0) | {"ids": IDS}
        fetches = [
            (device.there(n, rank.sent_bytes), device.there(n, rank.train_op)) for n, rank in enumerate(device.ranks)
        ]
        found = device.session.run(fetches, device.fed([values, values]))
        return by_variable(planned(single, "ps", partitions=2), found[0][0])

    plain, crossing = bytes_with(lambda gradients: gradients), bytes_with(by_largest)
    assert crossing["table"] >= plain["table"] + 3 * 16
    assert crossing | {"table": None} == plain | {"table": None}


def test_a_norm_of_each_row_is_taken_where_the_rows_are() -> None:
    def by_row(gradients: list[Any]) -> list[Any]:
        sparse, dense = gradients
        values = tf.clip_by_norm(sparse.values, 0.3, axes=[1])
        return [tf.IndexedSlices(values, sparse.indices, sparse.dense_shape), dense]

    single = captured(process=by_row)
    plan = planned(single, "ps", partitions=2)
    chief = rewrite_for_rank(single, plan, rank=0, seed=1)
    assert not [op.name for op in edit.ancestors([chief.train_op]) if "from_servers" in op.name]
