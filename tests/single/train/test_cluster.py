"""What sessions and servers are configured with: devices, GPU memory, the protocol."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.config import cluster_size
from parallax_runner.errors import PlanError
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train import cluster, sessions
from parallax_runner.train.cluster import join_cluster
from parallax_runner.train.gpu_limits import GpuLimits
from parallax_runner.train.protocols import check_protocol
from parallax_runner.train.session_config import session_config
from tests.single.config.test_cluster_size import compose
from tests.single.small_models import captured, planned


def test_a_worker_sees_its_own_gpus() -> None:
    options = session_config(1, gpus=GpuLimits(visible=(3, 1))).gpu_options
    assert options.visible_device_list == "3,1"
    assert (options.per_process_gpu_memory_fraction, options.allow_growth) == (0, False)


def test_memory() -> None:
    options = session_config(1, gpus=GpuLimits((0,), memory_fraction=0.4)).gpu_options
    assert (options.per_process_gpu_memory_fraction, options.allow_growth) == (pytest.approx(0.4), False)
    options = session_config(1, gpus=GpuLimits((0,), allow_growth=True)).gpu_options
    assert (options.per_process_gpu_memory_fraction, options.allow_growth) == (0, True)


def test_a_server_uses_no_gpu() -> None:
    assert session_config(1).device_count.get("GPU") == 0
    assert "GPU" not in session_config(1, gpus=GpuLimits((0,))).device_count


def limits(rank: int, *lines: str) -> GpuLimits:
    return sessions.gpu_limits(compose(*lines), rank)


def test_limits_follow_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_size, "detect_gpus", lambda: (0, 1))
    assert limits(1) == GpuLimits(visible=(1,))
    assert limits(0, "cluster.gpu_memory_fraction=0.3").memory_fraction == 0.3
    assert limits(0, "cluster.allow_growth=true").allow_growth
    assert limits(0, "comm=ps", "cluster.replicas_per_worker=2") == GpuLimits(visible=(0, 1))


class Client:
    """A cluster of one worker and no other process."""

    own_address = "10.0.0.7"

    def exchange_address(self, address: str) -> dict[str, list[str]]:
        return {"worker": [address], "server": ["127.0.0.1:1"]}


class Refused(Exception):
    """Stands for a server's start."""


def test_the_server_gets_protocol_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def start(spec: tf.train.ClusterSpec, **options: Any) -> None:
        given.update(options, address=spec.task_address("worker", 0))
        raise Refused

    bound: list[str] = []
    seeded: list[Any] = []
    monkeypatch.setattr(cluster, "seed_apart", lambda *process: seeded.append(process))
    monkeypatch.setattr(cluster.server_lib, "Server", start)
    monkeypatch.setattr(cluster, "bind_towards", bound.append)
    monkeypatch.setattr(cluster, "pick_port", lambda host: bound.append(host) or 4000)
    with pytest.raises(Refused):
        join_cluster(Client(), role="worker", index=0, threads=1, protocol="grpc+verbs", gpus=GpuLimits((5,)))
    assert given["protocol"] == "grpc+verbs"
    # The address by which it reached the driver, which others can reach too.
    assert given["address"] == "10.0.0.7:4000"
    assert bound == ["10.0.0.7", "10.0.0.7"]
    assert seeded == [("worker", 0, {"worker": ["10.0.0.7:4000"], "server": ["127.0.0.1:1"]})]
    assert given["config"].gpu_options.visible_device_list == "5"


def test_the_session_of_a_rank_gets_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    single = captured()
    limited = GpuLimits((5,), memory_fraction=0.5)
    plan = planned(single, "mpi")
    distributed = rewrite_for_rank(single, plan, rank=1, seed=1)
    given: list[Any] = []
    monkeypatch.setattr(sessions.tf, "Session", lambda *_, config, **__: given.append(config))
    sessions.open_session(Client(), plan, distributed, 1, gpus=limited)
    plan = planned(single, "ps", servers=1)

    class Target:
        target = ""

    joined: dict[str, Any] = {}
    monkeypatch.setattr(sessions, "join_cluster", lambda *_, **options: joined.update(options) or Target())
    sessions.open_session(Client(), plan, distributed, 1, protocol="grpc+gdr", gpus=limited)
    assert [config.gpu_options.visible_device_list for config in given] == ["5", "5"]
    assert (joined["protocol"], joined["gpus"]) == ("grpc+gdr", limited)


def test_grpc_is_there_and_others_are_refused_with_the_list() -> None:
    check_protocol("grpc")
    with pytest.raises(
        PlanError,
        match=r"comm.ps.protocol=grpc\+verbs: this TensorFlow build does not support it; expected one of: grpc$",
    ):
        check_protocol("grpc+verbs")
