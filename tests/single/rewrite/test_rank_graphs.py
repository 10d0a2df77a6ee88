"""Where each op of a rank's graph runs, and what ranks agree on by name."""

from __future__ import annotations

import dataclasses
import functools
import re

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.parallel.cases import Case
from tests.single.small_models import captured, clip, lookup_model, planned

COMMS = ("mpi", "ps", "hybrid")


@functools.cache
def rank_graph(
    comm: str, rank: int, *, workers: int = 2, partitions: int = 2, optimizer: str = "adagrad", pieces: int = 1
) -> DistributedGraph:
    single = captured(lambda features: lookup_model(features, pieces=pieces), optimizer=optimizer, process=clip)
    plan = planned(single, comm, workers=workers, partitions=partitions)
    return rewrite_for_rank(single, plan, rank=rank, seed=1)


def step(graph: DistributedGraph) -> list[tf.Operation]:
    """All ops that run when a step does."""
    return sorted(edit.ancestors([graph.train_op, graph.loss.op]), key=lambda op: op.name)


def updates(graph: DistributedGraph) -> dict[str, str]:
    """The device of each update op of the step, by the name of the variable."""
    return {
        edit.handle_of(op)[0].name: op.device
        for op in step(graph)
        if op.type.startswith(("ResourceApply", "ResourceSparseApply", "Assign"))
    }


def on_server(op: tf.Operation) -> bool:
    return op.device.startswith("/job:ps")


@pytest.mark.parametrize("rank", [0, 1])
def test_hybrid_has_sparse_variables_on_servers_and_dense_ones_on_the_worker(rank: int) -> None:
    worker = f"/job:worker/task:{rank}"
    graph = rank_graph("hybrid", rank)
    handles = {op.name: op.device for op in step(graph) if op.type == "VarHandleOp"}
    slots = {f"table/Adagrad/shard_{n}": f"/job:ps/task:{n}/device:CPU:0" for n in (0, 1)} if rank == 0 else {}
    assert handles == slots | {
        "table/shard_0": "/job:ps/task:0/device:CPU:0",
        "table/shard_1": "/job:ps/task:1/device:CPU:0",
        "weights": worker,
        "weights/Adagrad": worker,
        "global_step": worker,
    }
    own = {"weights": worker, "global_step": worker}
    chiefs = {f"table/shard_{n}": f"/job:ps/task:{n}/device:CPU:0" for n in (0, 1)}
    assert updates(graph) == (own | chiefs if rank == 0 else own)


def test_hybrid_sends_no_sparse_variable_through_horovod() -> None:
    collectives = [op for op in step(rank_graph("hybrid", 0)) if op.type.startswith("Horovod")]
    assert [op.type for op in collectives] == ["HorovodGroupedAllreduce"]
    assert [output.shape.as_list() for output in collectives[0].outputs] == [[2]]  # The weights' gradient.
    # Nor are initial values on servers any rank's but the chief's.
    agreed = edit.ancestors([rank_graph("hybrid", 0).agree])
    broadcast = {op.name for op in agreed if op.type == "HorovodBroadcast"}
    names = ("fingerprints", "weights", "weights/Adagrad", "global_step")
    assert broadcast == {f"initial/{name}" for name in names}


@pytest.mark.parametrize("rank", [0, 1])
def test_ps_updates_on_servers_by_the_chief(rank: int) -> None:
    graph = rank_graph("ps", rank)
    found = updates(graph)
    assert found.pop("global_step") == f"/job:worker/task:{rank}"
    assert set(found) == ({"table/shard_0", "table/shard_1", "weights/shard_0"} if rank == 0 else set())
    assert all(device.startswith("/job:ps") for device in found.values())
    assert not any(op.type.startswith("Horovod") for op in graph.graph.get_operations())


def test_mpi_has_everything_on_the_worker() -> None:
    graph = rank_graph("mpi", 1)
    assert set(updates(graph)) == {"table", "weights", "global_step"}
    assert {op.device for op in graph.graph.get_operations()} == {""}
    assert graph.device == ""


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("comm", ["ps", "hybrid"])
def test_a_follower_pushes_reads_and_waits_but_changes_nothing_on_servers(comm: str, optimizer: str) -> None:
    chief = {op.type for op in step(rank_graph(comm, 0, optimizer=optimizer)) if on_server(op)}
    follower = {op.type for op in step(rank_graph(comm, 1, optimizer=optimizer)) if on_server(op)}
    writes = {t for t in chief if t.startswith(("ResourceApply", "ResourceSparse", "ResourceScatter", "Assign"))}
    assert writes  # Or the test would show nothing.
    assert "SparseAccumulatorTakeGradient" in chief
    assert "SparseAccumulatorApplyGradient" in follower
    assert not follower & (writes | {"QueueEnqueueV2"})
    assert not [kind for kind in follower if "TakeGradient" in kind]
    assert "QueueDequeueV2" in follower
    assert "QueueDequeueV2" not in chief


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("comm", ["ps", "hybrid"])
def test_the_variable_that_was_sharded_is_not_used(comm: str, rank: int) -> None:
    graph = rank_graph(comm, rank)
    used = edit.ancestors([graph.train_op, graph.loss.op, graph.validation_loss.op, graph.initialize, graph.agree])
    names = {op.name for op in used if op.type == "VarHandleOp"}
    assert "weights" in names if comm == "hybrid" else "weights/shard_0" in names
    moved = {"table", "table/Adagrad"} | ({"weights", "weights/Adagrad"} if comm == "ps" else set())
    assert not names & moved


def resources(graph: DistributedGraph, *types: str) -> dict[str, tuple[str, list[str]]]:
    """By shared name: device, and all attributes, dtype and shape among them."""
    return {
        re.sub("/[0-9a-f]{16}/", "/", op.node_def.attr["shared_name"].s.decode()): (
            op.device,
            sorted(map(str, op.node_def.attr.items())),
        )
        for op in graph.graph.get_operations()
        if op.type in types
    }


@pytest.mark.parametrize("comm", ["ps", "hybrid"])
def test_ranks_share_accumulators(comm: str) -> None:
    types = ("ResourceConditionalAccumulator", "SparseConditionalAccumulator")
    ranks = [resources(rank_graph(comm, rank, workers=3), *types) for rank in range(3)]
    assert ranks[0] == ranks[1] == ranks[2]
    shards = {"sum/table/gradient_0/shard_0", "sum/table/gradient_0/shard_1"}
    assert set(ranks[0]) == shards | ({"sum/weights/gradient_1"} if comm == "ps" else set())
    names = [[op.name for op in step(rank_graph(comm, rank, workers=3)) if op.type in types] for rank in range(3)]
    assert names[0] == names[1] == names[2]


@pytest.mark.parametrize("comm", ["ps", "hybrid"])
def test_the_chief_has_a_queue_for_each_rank(comm: str) -> None:
    queues = [resources(rank_graph(comm, rank, workers=3), "FIFOQueueV2") for rank in range(3)]
    things = {name.rpartition("/")[0] for name in queues[0]}
    assert {"announce/ready/bool", "announce/step/bool"} <= things
    for rank in (1, 2):
        assert {f"{thing}/{rank}" for thing in things} <= set(queues[0])
        theirs = {name: queue for name, queue in queues[rank].items() if name.endswith(f"/{rank}")}
        assert theirs == {name: queue for name, queue in queues[0].items() if name.endswith(f"/{rank}")}


@pytest.mark.parametrize("comm", COMMS)
def test_ranks_name_collectives_alike(comm: str) -> None:
    def collectives(rank: int) -> list[tuple[str, str]]:
        graph = rank_graph(comm, rank).graph
        return [(op.type, op.name) for op in graph.get_operations() if op.type.startswith("Horovod")]

    assert collectives(0) == collectives(1)
    kinds = {kind for kind, _ in collectives(0)}
    assert (
        kinds
        == {
            "mpi": {"HorovodGroupedAllreduce", "HorovodAllgather", "HorovodBroadcast"},
            "ps": set(),
            "hybrid": {"HorovodGroupedAllreduce", "HorovodBroadcast"},
        }[comm]
    )


def test_rows_of_ranks_are_gathered_only_for_who_reads_them() -> None:
    """TensorFlow makes a read of each variable; a table, its slots and all tables of its size share one row order."""
    ops = rank_graph("sharded", 0).graph.get_operations()
    of_rows = {op.type for op in ops if op.type.startswith("Horovod") and op.name.startswith("own_rows/")}
    assert of_rows == {"HorovodAlltoall"}  # to the chief, for checkpoints
    assert [op.name for op in ops if op.type == "Range" and "row_order" in op.name] == ["row_order/6/range"]


@pytest.mark.parametrize("model", ["joined", "joined_once"])
@pytest.mark.parametrize("comm", ["hybrid", "sharded"])
def test_joined_gradients_stay_with_the_owners_of_their_rows(comm: str, model: str) -> None:
    """Numbers, such as parts of a norm, are all that leaves the owners."""
    case = Case(comm=comm, model=model, optimizer="adam", clip=True, partitions=2)
    single = case.single()
    ops = step(rewrite_for_rank(single, case.plan(single), rank=0, seed=1))
    leaving = [op for op in ops if op.name.startswith("from_servers/") and op.type == "Identity"]
    leaving += [op for op in ops if op.name.startswith("over_ranks/") and op.type.startswith("Horovod")]
    assert leaving
    assert {op.outputs[0].shape.rank for op in leaving} == {0}


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("partitions", [1, 2, 4])
@pytest.mark.parametrize("comm", ["mpi", "ps", "hybrid"])
def test_the_pieces_of_logical_variables_cover_them(comm: str, partitions: int, pieces: int) -> None:
    graph = rank_graph(comm, 0, partitions=partitions, pieces=pieces)
    variables = {variable.name: variable for variable in graph.variables}
    assert set(variables) == {"table", "table/Adagrad", "weights", "weights/Adagrad", "global_step"}
    for name in ("table", "table/Adagrad"):
        table = variables[name]
        assert table.shape == (6, 2)
        covered = [row for piece in table.pieces for row in range(6)[piece.where[0]]]
        assert sorted(covered) == list(range(6))
        assert len(table.pieces) == max(pieces, 1 if comm == "mpi" else partitions)
        assert all(piece.is_shared == (comm != "mpi") for piece in table.pieces)
        assert all(piece.handle.op.get_attr("shape").dim[0].size == piece.shape[0] for piece in table.pieces)
    assert variables["global_step"].shape == ()
    assert [piece.is_shared for piece in variables["weights"].pieces] == [comm == "ps"]


def test_another_graph_than_the_plans_is_refused() -> None:
    single = captured()
    plan = dataclasses.replace(planned(single, "hybrid"), fingerprint="other")
    with pytest.raises(PlanError, match="the graph of replica 1 differs from the driver"):
        rewrite_for_rank(single, plan, rank=1, seed=1)


def test_two_rewrites_are_equal_but_for_nothing() -> None:
    single = captured(process=clip)
    plan = planned(single, "hybrid", partitions=2)
    made = [rewrite_for_rank(single, plan, rank=1, seed=1).graph.as_graph_def() for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("comm", ["ps", "hybrid"])
def test_only_the_chief_initializes_what_is_on_servers(comm: str, rank: int) -> None:
    ops = edit.ancestors([rank_graph(comm, rank).initialize])
    written = {op.inputs[0].op.name for op in ops if op.type == "AssignVariableOp"}
    assert "global_step" in written
    assert {"table/shard_0", "table/shard_1", "table/Adagrad/shard_0"} <= written or rank == 1
    assert not [name for name in written if "shard" in name] or rank == 0
