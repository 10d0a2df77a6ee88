"""What the session of `parallel_run` takes and gives: two replicas, or two workers, with rows on two servers."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.framework.indexed_slices import IndexedSlicesValue

import parallax_runner as parallax
from parallax_runner.analysis.classify import classify
from parallax_runner.api.fetch_check import FetchCheck
from parallax_runner.api.steps import Steps
from parallax_runner.errors import TrainingError
from parallax_runner.graph.script_graph import capture_script
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.api.cluster import Cluster, at_once
from tests.single.plans import plan_of

RATE = 0.5
IDS = [[0, 1, 1], [1, 2, 5]]
Pair = namedtuple("Pair", "first second")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


def build(scope: str, *, partitioner: Any = None) -> tf.Graph:
    """A table [6, 2] of ones, looked up by «ids», times «weights»; one loss, one train op."""
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int32, [3], name="ids")
        tf.sparse_placeholder(tf.float64, [2, 3], name="sparse")
        with tf.variable_scope(scope, partitioner=partitioner):
            table = tf.get_variable("table", [6, 2], tf.float64, initializer=tf.ones_initializer())
        with tf.variable_scope(scope):
            weights = tf.get_variable("weights", [2], tf.float64, initializer=tf.ones_initializer())
            count = tf.get_variable("count", [], tf.int64, initializer=tf.zeros_initializer(), trainable=False)
        step = tf.train.get_or_create_global_step()
        rows = tf.nn.embedding_lookup(table, ids, name="rows")
        loss = tf.reduce_mean(tf.reduce_sum(rows * weights, axis=1), name="loss")
        optimizer = tf.train.GradientDescentOptimizer(RATE)
        pairs = optimizer.compute_gradients(loss)
        clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 100.0)
        train_op = optimizer.apply_gradients(zip(clipped, [v for _, v in pairs], strict=True), step, name="train")
        with tf.control_dependencies([train_op]):
            tf.identity(loss, name="loss_of_step")
        tf.identity(norm, name="norm")
        tf.identity(tf.global_norm(clipped), name="clipped_norm")
        tf.reduce_max(tf.abs(clipped[0].values), name="largest")
        parts = [tf.summary.scalar("norm_after", tf.global_norm(clipped)), tf.summary.scalar("of_step", loss)]
        tf.identity(tf.summary.merge(parts), name="summary")
        tf.group(tf.assign_add(count, 1), name="counted")
        tf.group(tf.assign(weights, [7.0, 7.0]), name="overwritten")
        tf.group(tf.global_variables_initializer(), tf.tables_initializer(), tf.assign_add(count, 10), name="start")
        graph.gradient = next(gradient for gradient, variable in pairs if isinstance(gradient, tf.IndexedSlices))
        graph.table, graph.weights, graph.scope = table, weights, scope
    return graph


def raw(table: np.ndarray, weights: np.ndarray, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of table and weights of one replica."""
    sparse = np.zeros_like(table)
    np.add.at(sparse, ids, weights / len(ids))
    return sparse, table[ids].mean(axis=0)


def one_device(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Table and weights after some steps: sparse gradients summed, dense ones averaged."""
    table, weights = np.ones((6, 2)), np.ones(2)
    for _ in range(steps):
        both = [raw(table, weights, ids) for ids in IDS]
        table, weights = table - RATE * sum(s for s, _ in both), weights - RATE * sum(d for _, d in both) / 2
    return table, weights


@pytest.fixture(scope="module")
def two_replicas(cluster: Cluster) -> Any:
    """A session of one worker with two replicas, before its first step."""
    graph = build("two_replicas", partitioner=parallax.get_partitioner(3))
    (session,) = cluster.sessions(graph, replicas_per_worker=2)
    return session


def test_each_way_to_name_a_fetch(two_replicas: Any) -> None:
    graph = two_replicas.graph
    loss = graph.get_tensor_by_name("loss:0")
    by_tensor, by_name = two_replicas.run([loss, "loss:0"], {"ids:0": IDS})
    assert by_tensor == by_name == [2.0, 2.0]
    assert two_replicas.run(graph.get_operation_by_name("counted")) == [None, None]
    assert two_replicas.run("counted") == [None, None]
    assert two_replicas.run(f"{graph.scope}/count:0") == [2, 2]


def test_nests_of_fetches(two_replicas: Any) -> None:
    nest = {
        "list": ["loss:0", ["ids:0"]],
        "tuple": ("loss:0", ("ids:0", [])),
        "named": Pair("loss:0", {"x": "ids:0"}),
        "ordered": OrderedDict(b="loss:0", a="ids:0"),
        "default": defaultdict(list, b="loss:0"),
    }
    found = two_replicas.run(nest, feed={two_replicas.graph.get_tensor_by_name("ids:0"): IDS})
    loss = [2.0, 2.0]
    assert found["list"][0] == found["tuple"][0] == found["named"].first == found["ordered"]["b"] == loss
    for ids in (found["list"][1][0], found["tuple"][1][0], found["named"].second["x"], found["ordered"]["a"]):
        np.testing.assert_array_equal(ids, IDS)
    assert isinstance(found["tuple"], tuple) and isinstance(found["named"], Pair) and found["tuple"][1][1] == []
    assert list(found["ordered"]) == ["b", "a"]
    assert found["default"] == {"b": loss} and found["default"]["c"] == []
    assert two_replicas.run([]) == []


def test_slices_and_sparse_tensors(two_replicas: Any) -> None:
    graph = two_replicas.graph
    slices = two_replicas.run(graph.gradient, {"ids:0": IDS})
    for value, ids in zip(slices, IDS, strict=True):
        assert isinstance(value, IndexedSlicesValue)
        np.testing.assert_array_equal(value.indices, ids)  # as the backward pass gives them: not merged
        np.testing.assert_allclose(value.values, np.full((3, 2), 1 / 3))
        np.testing.assert_array_equal(value.dense_shape, [6, 2])
    parts = [graph.get_tensor_by_name(f"sparse/{name}:0") for name in ("indices", "values", "shape")]
    sparse = tf.SparseTensor(*parts)
    given = [tf.SparseTensorValue([[0, 1]], [value], [2, 3]) for value in (4.0, 5.0)]
    found = two_replicas.run({"sparse": sparse}, {sparse: given})["sparse"]
    assert [type(value) for value in found] == [tf.SparseTensorValue] * 2
    assert [value.values.tolist() for value in found] == [[4.0], [5.0]]


def test_a_feed_has_one_value_for_each_replica(two_replicas: Any) -> None:
    for wrong in (IDS[:1], np.array(IDS)):
        with pytest.raises(TrainingError, match=r"expected a list of 2 values, one for each replica"):
            two_replicas.run("loss:0", {"ids:0": wrong})
    rows = two_replicas.run("rows:0", {"ids:0": IDS})
    assert [row.shape for row in rows] == [(3, 2), (3, 2)]
    with pytest.raises(KeyError, match="no_such_op"):
        two_replicas.run("no_such_op")
    with pytest.raises(TypeError):
        two_replicas.run(None)


def test_variables_are_initialized_by_whom_they_should(two_replicas: Any) -> None:
    """An initializer that a script runs because TensorFlow needs it changes nothing; what it groups besides is run."""
    count = f"{two_replicas.graph.scope}/count:0"
    before = two_replicas.run(count)
    assert two_replicas.run("start") == [None, None]
    assert two_replicas.run(count) == [value + 10 for value in before]


def test_a_step_with_all_around_it(cluster: Cluster) -> None:
    graph = build("a_step", partitioner=parallax.get_partitioner(3))
    (session,) = cluster.sessions(graph, replicas_per_worker=2)
    table, weights = one_device(1)
    # «counted» is no part of the step, and is run all the same.
    found = session.run(["train", "loss_of_step:0", "counted", "norm:0", "clipped_norm:0"], {"ids:0": IDS})
    assert found[:3] == [[None, None], [2.0, 2.0], [None, None]]
    total = [raw(np.ones((6, 2)), np.ones(2), ids) for ids in IDS]
    norm = np.sqrt(np.sum((total[0][0] + total[1][0]) ** 2) + np.sum(((total[0][1] + total[1][1]) / 2) ** 2))
    np.testing.assert_allclose(found[3], [norm, norm])
    np.testing.assert_allclose(found[4], [norm, norm])
    assert session.run("a_step/count:0") == [1, 1]
    names = [graph.table, "a_step/table:0", "a_step/table", next(iter(graph.table)), graph.weights, "a_step/weights"]
    values = session.run([*names, "global_step", "a_step/table/part_0/Read/ReadVariableOp:0"])
    assert [len(both) for both in values] == [2] * 8
    for value in (value for both in [*values[:4], values[7]] for value in both):
        np.testing.assert_allclose(value, table)
    for value in (value for both in values[4:6] for value in both):
        np.testing.assert_allclose(value, weights)
    assert values[6] == [1, 1]
    with pytest.raises(TrainingError, match=r"sets variables to their initial values, but .* steps have been run"):
        session.run("start")
    session.run("loss_of_step:0", {"ids:0": IDS})  # a tensor behind the updates is a step as well
    np.testing.assert_allclose(session.run(graph.table)[0], one_device(2)[0])


def test_what_cannot_be_served_is_refused(two_replicas: Any) -> None:
    with pytest.raises(TrainingError, match=r"«norm» needs .* together with the train op"):
        two_replicas.run("norm:0", {"ids:0": IDS})
    with pytest.raises(
        TrainingError, match=r"«AssignVariableOp» assigns to «two_replicas/weights», which is on servers"
    ):
        two_replicas.run("overwritten")
    np.testing.assert_array_equal(two_replicas.run(two_replicas.graph.weights)[0], [1.0, 1.0])


def test_a_loss_that_is_no_number_ends_the_run_and_an_infinite_one_does_not(cluster: Cluster) -> None:
    (session,) = cluster.sessions(build("not_a_number"), replicas_per_worker=2)
    session.run("train", {"ids:0": IDS, "loss:0": [np.inf, 1.0]})
    with pytest.raises(TrainingError, match="the loss of step 2 is nan on rank 0"):
        session.run("train", {"ids:0": IDS, "loss:0": [np.nan, 1.0]})


def test_two_workers_see_the_same_step(cluster: Cluster) -> None:
    graph = build("two_workers")
    sessions = cluster.sessions(graph, workers=2)

    def train(rank: int) -> list[Any]:
        feed = {"ids:0": [IDS[rank]]}
        found = [sessions[rank].run(["train", "loss:0", "norm:0"], feed) for _ in range(3)]
        return [*found[-1], *sessions[rank].run([graph.table, graph.weights])]

    first, second = at_once([lambda: train(0), lambda: train(1)])
    table, weights = one_device(3)
    for found in (first, second):
        np.testing.assert_allclose(found[3][0], table)
        np.testing.assert_allclose(found[4][0], weights)
    assert first[2] == second[2]  # the norm of the whole gradient


def test_what_is_made_of_clipped_gradients_is_that_of_all_workers(cluster: Cluster) -> None:
    """A summary of their norm, which no update needs, as a step's own values; all of their rows only on the chief."""
    graph = build("clipped", partitioner=parallax.get_partitioner(2))
    sessions = cluster.sessions(graph, workers=2)

    def train(rank: int, *beside: str) -> list[Any]:
        return sessions[rank].run(["train", "clipped_norm:0", "summary:0", *beside], {"ids:0": [IDS[rank]]})

    first, second = at_once([lambda: train(0, "largest:0"), lambda: train(1)])
    gradients = [raw(np.ones((6, 2)), np.ones(2), ids) for ids in IDS]
    rows, dense = sum(sparse for sparse, _ in gradients), sum(dense for _, dense in gradients) / 2
    norm = np.sqrt(np.sum(rows**2) + np.sum(dense**2))
    for found in (first, second):
        np.testing.assert_allclose(found[1], [norm])
        values = {value.tag: value.simple_value for value in tf.Summary.FromString(found[2][0]).value}
        np.testing.assert_allclose([values["norm_after"], values["of_step"]], [norm, 2.0], rtol=1e-6)
    np.testing.assert_allclose(first[3], [np.max(rows)])
    with pytest.raises(TrainingError, match=r"«largest:0» needs .* fetch it only there"):
        train(1, "largest:0")
    at_once([lambda: train(0), lambda: train(1)])  # nothing is left in any queue
    with pytest.raises(TrainingError, match=r"«clipped_norm» needs .* together with the train op"):
        sessions[0].run("clipped_norm:0", {"ids:0": [IDS[0]]})


def watched(scope: str) -> tf.Graph:
    """A table [6, 2] of ones whose gradient is clipped, with ops that look at what clipping leaves of it."""
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int32, [3], name="ids")
        table = tf.get_variable(f"{scope}/table", [6, 2], tf.float64, initializer=tf.ones_initializer())
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), name="loss")
        optimizer = tf.train.GradientDescentOptimizer(RATE)
        ((gradient, _),) = optimizer.compute_gradients(loss)
        rows = tf.clip_by_norm(gradient.values, 100.0)
        clipped = tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape)
        optimizer.apply_gradients([(clipped, table)], name="train")
        tf.nn.l2_loss(rows, name="half")
        tf.reduce_sum(rows, name="sum")
        tf.identity(tf.norm(rows), name="length")
        tf.reduce_max(rows, name="largest")
        tf.reduce_sum(tf.reduce_max(rows, axis=1), name="sum_of_largest")
        tf.reduce_sum(tf.cumsum(rows, axis=0), name="sum_of_running")
        tf.check_numerics(tf.nn.l2_loss(rows) / 0.0, "nobody fetches this", name="checked")
    return graph


def test_every_worker_gets_sums_of_what_is_made_of_gradients(cluster: Cluster) -> None:
    first, second = cluster.sessions(watched("watched"), workers=2)
    rows = np.zeros((6, 2))
    np.add.at(rows, np.concatenate(IDS), 1.0)
    expected = [np.sum(rows**2) / 2, np.sum(rows), np.sqrt(np.sum(rows**2)), np.sum(np.max(rows, axis=1))]

    def train(rank: int, *fetches: str) -> Any:
        return (first, second)[rank].run([*fetches, "train"], {"ids:0": [IDS[rank]]})

    numbers = ("half:0", "sum:0", "length:0", "sum_of_largest:0")
    for found in at_once([lambda: train(0, *numbers), lambda: train(1, *numbers)]):
        np.testing.assert_allclose(found[: len(numbers)], [[number] for number in expected])
    with pytest.raises(TrainingError, match=r"«largest:0» needs .* or fetch a sum of it \(tf.nn.l2_loss"):
        train(1, "largest:0")
    # All rows would travel for it in each step.
    with pytest.raises(TrainingError, match=r"«sum_of_running:0» needs .* fetch it only there"):
        train(1, "sum_of_running:0")
    found, _ = at_once([lambda: train(0, "sum_of_running:0"), lambda: train(1)])
    touched = rows[np.unique(np.concatenate(IDS))]
    np.testing.assert_allclose(found[0], [np.sum(np.cumsum(touched, axis=0))])


def test_sums_of_gradients_that_whichever_worker_takes_are_refused(cluster: Cluster) -> None:
    first, second = cluster.sessions(build("backup_sums"), workers=2, backup_workers=1)
    with pytest.raises(TrainingError, match=r"comm.ps.backup_workers=1\); choose run_option='MPI' or .*=0"):
        first.run(["train", "norm:0"], {"ids:0": [IDS[0]]})
    at_once([first.close, second.close])


def test_what_is_made_of_rows_that_are_spread_over_the_workers_is_refused() -> None:
    """Each has a part of them, and what reads them in place of an update would see that part alone."""
    single = capture_script(build("spread"))
    fingerprint = single.fingerprint
    plan = plan_of(classify(single), comm="sharded", servers=0, average_sparse=False, fingerprint=fingerprint)
    distributed = rewrite_for_rank(single, plan, rank=0, seed=1)
    tensor, steps = distributed.graph.get_tensor_by_name, Steps(single)
    check = FetchCheck(plan, steps, distributed)
    check.check_fetches(["norm"], [tensor("norm:0"), tensor("loss:0")], updates=steps.updates)
    for name in ("largest", "clipped_norm", "summary"):
        with pytest.raises(TrainingError, match=rf"«{name}:0» needs .* by the owners of the rows \(each worker owns"):
            check.check_fetches([name], [tensor(f"{name}:0")], updates=steps.updates)


def two_players(scope: str) -> tf.Graph:
    """Two losses, each with variables and a train op of its own."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float64, [2], name="x")
        for name in ("generator", "discriminator"):
            weights = tf.get_variable(f"{scope}/{name}", [2], tf.float64, initializer=tf.ones_initializer())
            tf.train.GradientDescentOptimizer(RATE).minimize(
                tf.reduce_sum(weights * x), var_list=[weights], name=f"train_{name}"
            )
    return graph


def test_two_train_ops_take_turns_where_nothing_is_on_servers(cluster: Cluster) -> None:
    (session,) = cluster.sessions(two_players("turns"), comm="local", training={"knows_loss": False})
    for name in ("generator", "discriminator", "generator"):
        session.run(f"train_{name}", {"x:0": [[1.0, 2.0]]})
    generator, discriminator = session.run(["turns/generator:0", "turns/discriminator:0"])
    np.testing.assert_allclose(generator[0], [0.0, -1.0])
    np.testing.assert_allclose(discriminator[0], [0.5, 0.0])
    assert session.runner.step == 3


def test_two_train_ops_with_servers_are_one_step(cluster: Cluster) -> None:
    (session,) = cluster.sessions(two_players("refused"), training={"knows_loss": False})
    with pytest.raises(TrainingError, match=r"does not run all updates: .* fetch all train ops together"):
        session.run("train_generator", {"x:0": [[1.0, 2.0]]})
    session.run(["train_generator", "train_discriminator"], {"x:0": [[1.0, 2.0]]})
    for value in session.run(["refused/generator:0", "refused/discriminator:0"]):
        np.testing.assert_allclose(value[0], [0.5, 0.0])


def test_queues_are_filled(cluster: Cluster) -> None:
    """Each replica has a queue of its own, which threads fill from its part of the numbers."""
    graph = tf.Graph()
    with graph.as_default():
        shards, shard = parallax.shard.create_num_shards_and_shard_id()
        (number,) = tf.train.slice_input_producer([tf.range(8)], num_epochs=1, shuffle=False)
        mine = tf.train.maybe_batch([number], tf.equal(tf.cast(number, tf.int64) % shards, shard), 2)
        tf.identity(mine, name="mine")
        weights = tf.get_variable("queued/weights", [2], tf.float64, initializer=tf.ones_initializer())
        loss = tf.reduce_sum(weights * tf.cast(mine, tf.float64))
        tf.train.GradientDescentOptimizer(RATE).minimize(loss, name="train")
    (session,) = cluster.sessions(graph, replicas_per_worker=2)
    seen = [session.run(["train", "mine:0"])[1] for _ in range(2)]
    np.testing.assert_array_equal(seen, [[[0, 2], [1, 3]], [[4, 6], [5, 7]]])
    with pytest.raises(tf.errors.OutOfRangeError):
        session.run("mine:0")
    session.close()


def test_workers_that_do_not_wait_for_each_other(cluster: Cluster) -> None:
    graph = build("at_once")
    sessions = cluster.sessions(graph, workers=2, sync=False, staleness=1)
    for session in sessions:  # one after the other: as far as the bound lets them
        found = session.run(["train", "clipped_norm:0", "norm:0"], {"ids:0": [IDS[0]]})
        assert found[1] == found[2]
    assert sessions[0].run("global_step") == [2]
    # Nobody has to wait: nothing of the first step is left in any queue.
    sessions[1].run("train", {"ids:0": [IDS[0]]})
    with pytest.raises(tf.errors.DeadlineExceededError):
        sessions[1].tf_session.run(sessions[1].runner.distributed.may_start, options=tf.RunOptions(timeout_in_ms=500))
    assert [report["staleness"] for report in sessions[1].runner.control.reports] == [[0], [0]]
    at_once([sessions[0].close, sessions[1].close])  # each waits for the other


def test_a_step_that_does_without_a_worker(cluster: Cluster) -> None:
    graph = build("backup")
    first, second = cluster.sessions(graph, workers=2, backup_workers=1)
    for _ in range(2):
        first.run("train", {"ids:0": [IDS[0]]})
    second.run("train", {"ids:0": [IDS[1]]})  # too late for the first step
    second.run("train", {"ids:0": [IDS[1]]})
    assert [report["dropped"] for report in second.runner.control.reports] == [1, 0]
    table, weights = np.ones((6, 2)), np.ones(2)
    for ids in (IDS[0], IDS[0], IDS[1]):
        sparse, dense = raw(table, weights, ids)
        table, weights = table - RATE * sparse, weights - RATE * dense
    np.testing.assert_allclose(first.run(graph.table)[0], table)
    np.testing.assert_allclose(second.run(graph.weights)[0], weights)
    at_once([first.close, second.close])
    assert first.runner.step == second.runner.step == 3
