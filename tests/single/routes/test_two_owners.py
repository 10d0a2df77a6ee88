"""One plan with rows on servers and rows on ranks: all ranks take part in the same exchanges, and each op runs where
the rows are (parallax_runner.rewrite.update_region.update_placed, parallax_runner.routes.ps.synchronous)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.collectives.chosen import is_exchange
from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.planning.choose import Choice
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.plans import plan_of
from tests.single.small_models import FEATURES, ROWS, WIDTH, captured, clip

ROUTES = {"first": "ps", "second": "ps", "own": "alltoall", "weights": "allreduce"}


def model(features: dict[str, tf.Tensor]) -> tf.Tensor:
    tables = [tf.get_variable(name, [ROWS, WIDTH], tf.float64) for name in ("first", "second", "own")]
    rows = tf.add_n([tf.nn.embedding_lookup(table, features["ids"]) for table in tables])
    return tf.reduce_sum(rows * tf.get_variable("weights", [WIDTH], tf.float64), axis=1)


def scaled_by_own_rows(features: dict[str, tf.Tensor], *, waits: bool) -> dict[str, Any]:
    """The update of «second», on servers, is scaled by what ranks have of «own». Nothing else needs this number. It may
    wait for the update of «first», on servers."""
    loss = tf.reduce_mean(tf.square(model(features) - features["y"]))
    variables = {variable.op.name: variable for variable in tf.trainable_variables()}
    gradients = dict(zip(variables, tf.gradients(loss, list(variables.values())), strict=True))

    def updated(name: str, scale: Any = 0.1) -> tf.Operation:
        rows = gradients[name]
        return tf.raw_ops.ResourceScatterSub(
            resource=variables[name].handle, indices=rows.indices, updates=scale * rows.values
        )

    first = updated("first")
    with tf.control_dependencies([first] if waits else []):
        squares = tf.reduce_sum(tf.square(gradients["own"].values))
    dense = variables["weights"].assign_sub(0.1 * gradients["weights"], read_value=False)
    train_op = tf.group(first, updated("second", squares), updated("own"), dense)
    return {"loss": loss, "train_op": train_op}


def rewritten(single: SingleDeviceGraph, rank: int) -> DistributedGraph:
    variables = classify(single)
    routes = {variable.name: ROUTES.get(variable.name, "local") for variable in variables}
    choice = Choice(routes=routes, reasons=dict.fromkeys(routes, "a test"))
    plan = plan_of(variables, fingerprint=single.fingerprint, partitions=2, choice=choice)
    return rewrite_for_rank(single, plan, rank=rank, seed=1, skip_nonfinite=True)


def step(graph: DistributedGraph) -> set[tf.Operation]:
    return edit.ancestors([graph.train_op, graph.loss.op])


def exchanges(graph: DistributedGraph) -> list[str]:
    return sorted(op.name for op in step(graph) if is_exchange(op.type))


def test_ranks_take_part_in_the_same_exchanges() -> None:
    single = captured(model, optimizer="adam", process=clip)
    chief, other = rewritten(single, 0), rewritten(single, 1)
    assert exchanges(chief) == exchanges(other)
    assert any("over_ranks" in name for name in exchanges(chief))  # a part of the norm


def test_ranks_take_part_in_an_exchange_that_only_servers_need() -> None:
    single = capture(functools.partial(scaled_by_own_rows, waits=False), FEATURES, seed=1)
    chief, other = rewritten(single, 0), rewritten(single, 1)
    assert exchanges(chief) == exchanges(other)
    assert any("over_ranks" in name for name in exchanges(other))


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exchange_that_waits_for_servers_and_for_which_they_wait_is_refused(rank: int) -> None:
    single = capture(functools.partial(scaled_by_own_rows, waits=True), FEATURES, seed=1)
    told = r"needs «over_ranks/Sum.*», which all workers .* waits for «ResourceScatterSub» on a server.*comm=sharded"
    with pytest.raises(PlanError, match=told):
        rewritten(single, rank)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_op_runs_where_the_rows_are(rank: int) -> None:
    """The chief updates the rows on servers, and each rank its own."""
    graph = rewritten(captured(model, optimizer="adagrad", process=clip), rank)
    updates = {
        edit.handle_of(op)[0].name: op.device
        for op in step(graph)
        if op.type.startswith(("ResourceApply", "ResourceSparseApply"))
    }
    worker, server = f"/job:worker/task:{rank}", "/job:ps/task"
    on_servers = {f"{name}/shard_{number}" for name in ("first", "second") for number in (0, 1)}
    assert set(updates) == {"own/own_rows", "weights", *(on_servers if rank == 0 else ())}
    assert all(updates[name].startswith(server if name in on_servers else worker) for name in updates)
    every = [op for op in graph.graph.get_operations() if is_exchange(op.type)]
    assert [op.name for op in every if not op.device.startswith(worker)] == []
