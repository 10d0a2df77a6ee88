"""Gradients that are ready leave before what does not need them is computed."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.graph import edit
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.rewrite.schedule import buckets
from tests.single.plans import plan_of
from tests.single.small_models import FEATURES, ROWS, WIDTH, Features, captured, planned


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
    monkeypatch.setattr(buckets, "SMALL_BYTES", 0)


def rewritten(comm: str, single: SingleDeviceGraph | None = None, **options: int) -> DistributedGraph:
    """Rank 0's graph; `options` are the plan's."""
    single = single or captured(two_tables)
    plan = plan_of(classify(single), comm=comm, fingerprint=single.fingerprint, **options)
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
        awaited = edit.ancestors(op.control_inputs)
        assert {one.name for one in awaited if "last" in one.name}, op.name


@pytest.mark.parametrize("comm", ["ps", "hybrid", "sharded"])
def test_what_sends_a_gradient_is_taken_up_before_what_waits_for_it(comm: str) -> None:
    """Behind one op more, which is cheap: TensorFlow's executor goes on with that, and puts what takes time below."""
    graph = rewritten(comm).graph
    awaited = {departing for op in waiting(graph) for departing in op.control_inputs}
    assert awaited
    for departing in awaited:
        readers = [op for tensor in departing.outputs for op in tensor.consumers()]
        kinds = {op.type for op in readers}
        assert {"EnsureShape"} <= kinds <= {"EnsureShape", "Size"}, departing.name  # Size: its bytes are counted
    collectives = [op for op in graph.get_operations() if op.type == "HorovodAlltoall" and "to_owners" in op.name]
    early = [op for op in collectives if {tensor.op.type for tensor in op.inputs} == {"EnsureShape"}]
    assert bool(early) == (comm == "sharded")
    for op in early:
        assert {tensor.op.inputs[0].op for tensor in op.inputs} <= awaited  # the sizes, too


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


def test_nothing_waits_for_what_is_behind_a_branch() -> None:
    """An op that waits for one in a branch that is not taken does not run either."""

    def branching(features: Features) -> tf.Tensor:
        return tf.cond(features["x"][0, 0] > 0, lambda: two_tables(features), lambda: features["y"])

    tf.disable_control_flow_v2()
    try:
        single = captured(branching)
    finally:
        tf.enable_control_flow_v2()
    graph = rewritten("mpi", single).graph
    assert any(op.type == "Switch" for op in graph.get_operations()) and not waiting(graph)


def test_what_is_computed_without_training_too_does_not_wait() -> None:
    """A gradient that is ready before the forward pass of another part of the loss."""

    def build(features: Features) -> dict[str, Any]:
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        kernel = tf.get_variable("kernel", [WIDTH, WIDTH], tf.float64)
        x = tf.matmul(tf.tanh(tf.matmul(features["x"], kernel)), kernel)
        loss = tf.reduce_mean(tf.nn.embedding_lookup(table, features["ids"])) + tf.reduce_mean(x)
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    distributed = rewritten("mpi", capture(build, FEATURES, seed=1))
    found = waiting(distributed.graph)
    assert found and not found & edit.ancestors([distributed.loss.op])


def test_without_a_sparse_gradient_nothing_waits() -> None:
    def dense(features: Features) -> tf.Tensor:
        kernel = tf.get_variable("kernel", [WIDTH, WIDTH], tf.float64)
        return tf.reduce_sum(tf.matmul(tf.matmul(features["x"], kernel), kernel), axis=1)

    single = captured(dense)
    assert not waiting(rewrite_for_rank(single, planned(single, comm="mpi"), rank=0, seed=1).graph)
