"""Device scopes: what names a device or a task that is not there is refused, with the op's name and the device's."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.devices import check_devices
from parallax_runner.errors import PlanError
from parallax_runner.graph.devices import leave_devices, named_workers, scopes_of
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from tests.single.small_models import Features, captured, infos, planned

TASKS = {"worker": 2, "ps": 3}


def on(device: str) -> SingleDeviceGraph:
    """A model whose only variable «weights», and the op «product», are in this scope."""

    def model(features: Features) -> tf.Tensor:
        with tf.device(device):
            weights = tf.get_variable("weights", [2], tf.float64)
            return tf.reduce_sum(tf.multiply(features["x"], weights, name="product"), axis=1)

    return captured(model)


def check(device: str, comm: str = "ps", **worker: int) -> None:
    tasks = TASKS if comm in ("ps", "hybrid") else {}
    check_devices(on(device), comm=comm, tasks=tasks, worker=worker or {"CPU": 2, "GPU": 1})


@pytest.mark.parametrize(
    "device", ["", "/cpu:0", "/CPU:1", "/gpu:0", "/job:ps", "/job:ps/task:2", "/job:worker/task:1/cpu:1", "/job:worker"]
)
def test_what_is_there(device: str) -> None:
    check(device)
    moved = check_devices(on(device), comm="ps", tasks=TASKS, worker={"CPU": 2, "GPU": 1}, soft=True)
    assert moved == ()  # Each op stays on the device that it names.


@pytest.mark.parametrize(
    ("device", "comm", "expected"),
    [
        (
            "/cpu:2",
            "mpi",
            "each worker has CPU:0 to 1 and GPU:0 (cluster.cpu_devices; cluster.resource_info for GPUs",
        ),
        ("/gpu:1", "local", "each worker has CPU:0 to 1 and GPU:0"),
        ("/job:worker/task:0/gpu:1", "hybrid", "each worker has"),
        (
            "/job:worker/task:2",
            "hybrid",
            "the cluster has /job:worker/task:0 to 1 and /job:ps/task:0 to 2 (cluster.workers",
        ),
        ("/job:ps/task:3", "ps", "the cluster has /job:worker"),
        ("/job:chief/task:0", "ps", "the cluster has /job:worker"),
        ("/job:ps/task:1/cpu:1", "ps", "a server has CPU:0 (cluster.soft_placement"),
        ("/job:ps/task:0", "mpi", "under comm=mpi the workers are not tasks of a TensorFlow cluster; use comm=ps"),
    ],
)
def test_what_is_not_there(device: str, comm: str, expected: str) -> None:
    with pytest.raises(PlanError) as raised:
        check(device, comm)
    spec = tf.DeviceSpec.from_string(device).to_string()
    message = str(raised.value)
    assert message.startswith("op «")
    assert f"is placed on {spec}, which does not exist: {expected}" in message
    assert "weights" in message or "product" in message


@pytest.mark.parametrize(
    ("device", "replicas", "expected"),
    [
        ("/gpu:3", 1, ("/device:GPU:3", "/device:GPU:0")),
        ("/job:ps/task:1/gpu:0", 1, ("/job:ps/task:1/device:GPU:0", "/job:ps/task:1/device:CPU:0")),
        ("/cpu:7", 2, ("/device:CPU:7", "/device:GPU:0 to 1, one for each replica")),
    ],
)
def test_soft_placement_tells_what_moves(device: str, replicas: int, expected: tuple[str, str]) -> None:
    single = on(device)
    worker = {"CPU": 2, "GPU": 2}
    ((ops, *where),) = check_devices(single, comm="ps", tasks=TASKS, worker=worker, replicas=replicas, soft=True)
    assert tuple(where) == expected
    assert ops == sum(1 for _ in scopes_of(single.meta_graph.graph_def)) > 1


def test_soft_placement_invents_no_task() -> None:
    with pytest.raises(PlanError, match="the cluster has /job:worker/task:0 to 1"):
        check_devices(on("/job:ps/task:3/gpu:0"), comm="ps", tasks=TASKS, worker={"CPU": 1}, soft=True)


def test_what_moves_keeps_its_job_and_task_also_inside_functions() -> None:
    def model(features: Features) -> tf.Tensor:
        @tf.function(autograph=False)
        def double(x: tf.Tensor) -> tf.Tensor:
            with tf.device("/job:worker/task:1/gpu:0"):
                return tf.add(x, x, name="twice")

        with tf.device("/cpu:1"):
            kept = tf.identity(features["x"])
        return tf.reduce_sum(double(kept) * tf.get_variable("weights", [2], tf.float64), axis=1)

    graph_def = captured(model).meta_graph.graph_def
    leave_devices(graph_def, {"/job:worker/task:1/device:GPU:0"})
    left = {name: device.to_string() for name, device in scopes_of(graph_def)}
    assert left["twice"] == "/job:worker/task:1"
    assert set(left.values()) == {"/job:worker/task:1", "/device:CPU:1"}


def test_scopes_inside_functions_are_seen() -> None:
    def model(features: Features) -> tf.Tensor:
        @tf.function(autograph=False)
        def double(x: tf.Tensor) -> tf.Tensor:
            with tf.device("/cpu:7"):
                return tf.add(x, x, name="twice")

        return tf.reduce_sum(double(features["x"]) * tf.get_variable("weights", [2], tf.float64), axis=1)

    with pytest.raises(PlanError, match=r"op «twice».*CPU:7"):
        check_devices(captured(model), comm="local", tasks={}, worker={"CPU": 1})


def test_a_gpu_is_not_taken_for_granted() -> None:
    with pytest.raises(PlanError, match=r"GPU:0, which does not exist: each worker has CPU:0 \("):
        check("/gpu:0", "local", CPU=1, GPU=0)


def test_a_variable_in_a_servers_scope_is_on_that_server() -> None:
    single = on("/job:ps/task:1")
    assert infos(single)["weights"].server == 1
    for comm in ("ps", "hybrid"):
        (weights,) = [one for one in planned(single, comm, servers=2).variables if one.name == "weights"]
        assert [shard.server for shard in weights.shards] == [1]


def test_the_workers_that_scopes_name() -> None:
    assert named_workers(on("/job:worker/task:1").meta_graph.graph_def) == {1}
    assert named_workers(on("/job:ps/task:1").meta_graph.graph_def) == set()
