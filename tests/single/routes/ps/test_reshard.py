"""Variables that are cut anew on real servers: values, what travels at once, and what is left."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import server_device
from parallax_runner.plan.plan import Plan, Route, Shard, VariablePlan
from parallax_runner.planning.placement import split_rows
from parallax_runner.routes.ps import reshard as resharding
from parallax_runner.routes.ps.on_servers import shard_handle
from tests.free_port import pick_free_ports

SHAPES = {"table": (13, 3), "flat": (13,), "scale": ()}


@pytest.fixture(scope="module")
def target() -> str:
    """A worker and two servers, all in this process."""
    addresses = [f"127.0.0.1:{port}" for port in pick_free_ports(3)]
    cluster = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
    for index in range(2):
        tf.train.Server(cluster, job_name="ps", task_index=index)
    return tf.train.Server(cluster, job_name="worker", task_index=0).target


def plan(pieces: int, first_server: int = 0) -> Plan:
    servers = itertools.cycle((first_server, 1 - first_server))
    variables = []
    for name, shape in SHAPES.items():
        sizes = split_rows(shape[0], pieces) if shape else [1]
        shards = tuple(Shard(number, rows, next(servers), len(sizes)) for number, rows in enumerate(sizes))
        slots = (f"{name}/slot",)
        variables.append(VariablePlan(name, shape, "float64", 0, "sparse", Route.PS, shards, slots, None, ""))
    return Plan("ps", 1, 2, "f", tuple(variables), ())


def graph_of() -> tf.Graph:
    """With the handles of one device, which tell types."""
    graph = tf.Graph()
    with graph.as_default():
        for name, shape in SHAPES.items():
            for each in (name, f"{name}/slot"):
                tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=shape, shared_name=each, name=each)
    return graph


def values(name: str) -> np.ndarray:
    shape = SHAPES[name.removesuffix("/slot")]
    return np.random.default_rng(len(name)).normal(size=shape)


def each_piece(made: Plan) -> list[tuple[str, tuple[int, ...], Shard]]:
    names = [(name, variable) for variable in made.variables for name in (variable.name, *variable.slots)]
    return [(name, variable.shape, piece) for name, variable in names for piece in variable.shards]


def fill(target: str, made: Plan) -> None:
    with tf.Graph().as_default() as graph:
        ops = []
        for name, shape, piece in each_piece(made):
            rows = values(name)[piece.offset :: piece.step] if shape else values(name)
            handle = shard_handle(name, tf.float64, shape, piece, op_name="x")
            with tf.device(server_device(piece.server)):
                ops.append(tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(rows)))
        with tf.Session(target, graph=graph) as session:
            session.run(ops)


def is_there(target: str, made: Plan) -> dict[tuple[str, Shard], bool]:
    with tf.Graph().as_default() as graph:
        asked = {}
        for name, shape, piece in each_piece(made):
            handle = shard_handle(name, tf.float64, shape, piece, op_name="x")
            with tf.device(server_device(piece.server)):
                asked[name, piece] = tf.raw_ops.VarIsInitializedOp(resource=handle)
        with tf.Session(target, graph=graph) as session:
            return {key: bool(found) for key, found in session.run(asked).items()}


def read(target: str, made: Plan) -> dict[str, np.ndarray]:
    with tf.Graph().as_default() as graph:
        parts: dict[str, list[tf.Tensor]] = {}
        for name, shape, piece in each_piece(made):
            handle = shard_handle(name, tf.float64, shape, piece, op_name="x")
            with tf.device(server_device(piece.server)):
                parts.setdefault(name, []).append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64))
        with tf.Session(target, graph=graph) as session:
            found = session.run(parts)
    whole = {name: np.full_like(values(name), np.nan) for name in found}
    for name, array in whole.items():
        for number, piece in enumerate(found[name]):
            array[... if array.ndim == 0 else np.s_[number :: len(found[name])]] = piece
    return whole


@pytest.mark.parametrize("chunk_bytes", [1, 50, 2**20])
def test_every_row_and_slot_comes_with_and_nothing_is_left(
    target: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one plan to the next, over and over; pieces, servers, or nothing may be the same."""
    monkeypatch.setattr(resharding, "CHUNK_BYTES", chunk_bytes)
    plans = [plan(1), plan(4), plan(3, first_server=1), plan(3), plan(3), plan(13), plan(1, first_server=1), plan(2)]
    fill(target, plans[0])
    for before, after in itertools.pairwise(plans):
        graph = graph_of()
        op = resharding.reshard(graph, before, after)
        with tf.Session(target, graph=graph) as session:
            session.run(op)
        found = read(target, after)
        assert set(found) == {name for variable in SHAPES for name in (variable, f"{variable}/slot")}
        for name, array in found.items():
            np.testing.assert_array_equal(array, values(name), err_msg=f"{name}")
        wanted = {(name, piece) for name, _, piece in each_piece(after)}
        assert {key for key, is_left in is_there(target, before).items() if is_left} <= wanted


def test_what_both_plans_have_is_not_touched() -> None:
    for after, changes in ((plan(3), set()), (plan(4), {"DestroyResourceOp", "AssignVariableOp"})):
        graph = graph_of()
        resharding.reshard(graph, plan(3), after)
        assert {op.type for op in graph.get_operations()} & {"DestroyResourceOp", "AssignVariableOp"} == changes


def test_no_message_is_larger_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "CHUNK_BYTES", 2 * 3 * 8)
    graph = graph_of()
    resharding.reshard(graph, plan(1), plan(2))
    sizes = [
        op.inputs[4].shape.num_elements() for op in graph.get_operations() if op.type == "ResourceStridedSliceAssign"
    ]
    assert sizes and max(size or 0 for size in sizes) <= 6
