"""Gradients that are ready leave before what does not need them is computed."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.graph import edit
from parallax_runner.plan.planner import make_plan
from parallax_runner.rewrite import update_own_rows
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.small_models import ROWS, WIDTH, Features, captured, planned


def two_tables(features: Features) -> tf.Tensor:
    """[BATCH]: «first» [ROWS, WIDTH] through two matmuls, times «last» [ROWS, WIDTH]: its gradient is ready early."""
    first = tf.get_variable("first", [ROWS, WIDTH], tf.float64)
    last = tf.get_variable("last", [ROWS, WIDTH], tf.float64)
    kernel = tf.get_variable("kernel", [WIDTH, WIDTH], tf.float64)
    x = tf.matmul(tf.tanh(tf.matmul(tf.nn.embedding_lookup(first, features["ids"]), kernel)), kernel)
    return tf.reduce_sum(tf.nn.embedding_lookup(last, features["ids"]) * x, axis=1)


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise gradients of so few rows leave with the next one under comm=sharded."""
    monkeypatch.setattr(update_own_rows, "SMALL_BYTES", 0)


def rewritten(comm: str, **options: int) -> DistributedGraph:
    """Rank 0's graph; `options` are the plan's."""
    single = captured(two_tables)
    chosen = {"workers": 2, "servers": 2, "partitions": 1, **options}
    plan = make_plan(classify(single), comm=comm, average_sparse=True, fingerprint=single.fingerprint, **chosen)
    return rewrite_for_rank(single, plan, rank=0, seed=1)


def waiting(graph: tf.Graph) -> set[tf.Operation]:
    """MatMuls that have to wait for something that is not among their inputs."""
    return {op for op in graph.get_operations() if op.type == "MatMul" and op.control_inputs}


@pytest.mark.parametrize("comm", ["mpi", "ps", "hybrid", "sharded"])
def test_the_backward_pass_waits_for_the_gradient_that_is_ready_before_it(comm: str) -> None:
    distributed = rewritten(comm)
    found = waiting(distributed.graph)
    assert found and not found & edit.ancestors([distributed.loss.op])
    for op in found:
        for departing in op.control_inputs:
            needed = edit.ancestors([departing])
            assert op not in needed and not needed & found
            lookups = {one.name for one in needed if "last" in one.name}
            assert lookups, departing.name


def test_no_gradient_waits_for_a_later_one() -> None:
    """Every matmul of the backward pass is reached in an order that needs no op twice."""
    graph = rewritten("hybrid").graph
    order = edit.in_order(set(graph.get_operations()))
    place = {op: number for number, op in enumerate(order)}
    for op in order:
        assert all(place[other] < place[op] for other in (*op.control_inputs, *(each.op for each in op.inputs)))


def test_replicas_of_one_worker_do_not_wait_for_each_other() -> None:
    assert not waiting(rewritten("ps", replicas_per_worker=2).graph)


def test_nothing_waits_for_a_gradient_that_may_not_leave() -> None:
    """A worker that comes too late pushes nothing, and its backward pass runs all the same."""
    assert waiting(rewritten("ps", workers=3).graph)
    assert not waiting(rewritten("ps", workers=3, backup_workers=1).graph)


def test_without_a_sparse_gradient_nothing_waits() -> None:
    def dense(features: Features) -> tf.Tensor:
        kernel = tf.get_variable("kernel", [WIDTH, WIDTH], tf.float64)
        return tf.reduce_sum(tf.matmul(tf.matmul(features["x"], kernel), kernel), axis=1)

    single = captured(dense)
    assert not waiting(rewrite_for_rank(single, planned(single, comm="mpi"), rank=0, seed=1).graph)
