"""Which process of a run a shard of Caffe2 is, and what the three functions of a model may return."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.api import scripts_without_driver
from parallax_runner.errors import ConfigError
from parallax_runner.frontdoors.caffe2 import data_parallel_model, shards
from parallax_runner.frontdoors.door import Task
from parallax_runner.launch.launchers.manual.rendezvous import split_address

REDIS = "redis://h:6379/run%201"
RENDEZVOUS = {"kv_handler": REDIS, "shard_id": 1, "num_shards": 3, "engine": "GLOO", "exit_nets": None}


def test_store_handlers_are_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_parallel_model.RedisStoreHandlerCreate(host="h", prefix="run 1") == REDIS
    monkeypatch.chdir(tmp_path)
    address = data_parallel_model.FileStoreHandlerCreate(path="my store", prefix="1%2")
    assert address == f"file://{tmp_path}/my%20store/1%252"
    split_address(address)
    assert data_parallel_model.FileStoreHandlerCreate(path="/meet") == "file:///meet"


def test_a_shard_is_a_rank() -> None:
    assert shards.task_of(RENDEZVOUS, [2], on_cpu=False) == Task("worker", 1, REDIS, 3, 0, gpus="2")
    assert shards.task_of(RENDEZVOUS, [2], on_cpu=True) == Task("worker", 1, REDIS, 3, 0, gpus="")
    assert shards.task_of({**RENDEZVOUS, "num_shards": 1, "shard_id": 0}, [0, 1], on_cpu=True) is None
    first = shards.task_of({**RENDEZVOUS, "shard_id": 0}, None, on_cpu=False)
    assert first is not None and first.starts_driver


def test_exit_nets_stay_as_they_are() -> None:
    exit_nets: list[Any] = []
    expected = shards.task_of(RENDEZVOUS, [0], on_cpu=True)
    assert shards.task_of({**RENDEZVOUS, "exit_nets": exit_nets}, [0], on_cpu=True) == expected
    assert exit_nets == []


@pytest.mark.parametrize(
    ("changed", "devices", "wrong"),
    [
        ({"engine": "RDMA"}, [0], "engine='RDMA': expected 'GLOO'"),
        ({"shard_id": 3}, [0], "shard_id=3: expected a number below num_shards=3"),
        ({"num_shards": "2"}, [0], "num_shards='2': expected an integer"),
        ({"kv_handler": "store_handler"}, [0], "'store_handler': expected file:///shared/folder"),
        ({}, [0, 1], "devices=[0, 1]: expected one"),
    ],
)
def test_a_wrong_rendezvous(changed: dict[str, Any], devices: list[int], wrong: str) -> None:
    with pytest.raises(ConfigError) as raised:
        shards.task_of({**RENDEZVOUS, **changed}, devices, on_cpu=False)
    assert wrong in str(raised.value)


def test_what_a_rendezvous_lacks() -> None:
    with pytest.raises(ConfigError, match="rendezvous has no shard_id, num_shards"):
        shards.task_of({"kv_handler": REDIS}, [0], on_cpu=False)


def parallelize(forward: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[tf.Graph, list[Any]]:
    """The graph that is trained, and the other arguments of the run."""
    started: list[Any] = []
    monkeypatch.setattr(scripts_without_driver, "_lines", [])
    monkeypatch.setattr(data_parallel_model, "parallel_run", lambda *told: started.extend(told) or (None, 2, 0, 1))
    data_parallel_model.Parallelize(types.SimpleNamespace(), lambda model: None, forward, optimizer, devices=[0, 1])
    return started[0], started[1:]


def test_losses_are_added_up_and_updates_run_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(model: Any, loss_scale: float) -> list[tf.Tensor]:
        weights = tf.get_variable("weights", [], initializer=tf.ones_initializer())
        count = tf.get_variable("count", [], initializer=tf.zeros_initializer(), trainable=False)
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(count, 1.0).op)
        return [loss_scale * 2.0 * weights, loss_scale * weights]

    graph, (resources, sync, config) = parallelize(
        forward, lambda model: tf.train.GradientDescentOptimizer(0.1), monkeypatch
    )
    assert (resources, sync, config.run_option, config.average_sparse) == (["localhost: 0,1"], True, "MPI", True)
    with graph.as_default(), tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(graph.get_operation_by_name("group_deps"))
        values = {variable.op.name: session.run(variable) for variable in tf.global_variables()}
    assert values == {"weights": pytest.approx(0.7), "count": 1.0, "global_step": 1}


@pytest.mark.parametrize(
    ("forward", "optimizer", "wrong"),
    [
        (lambda model, scale: None, lambda model: None, "forward_pass_builder_fun .* returned .*; expected a list"),
        (lambda model, scale: [tf.constant(1.0)], lambda model: "sgd", "optimizer_builder_fun .* returned 'sgd'"),
    ],
)
def test_functions_that_return_something_else(
    forward: Any, optimizer: Any, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=wrong):
        parallelize(forward, optimizer, monkeypatch)
