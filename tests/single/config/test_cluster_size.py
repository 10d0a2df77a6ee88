"""What follows from `cluster.resource_info`, and what cannot stand beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.config import cluster_size, resource_info
from parallax_runner.config.cluster_size import largest_size, size_cluster, spans_hosts, visible_gpus
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.compose import Composer, resolve
from parallax_runner.config.frozen import freeze, load
from parallax_runner.config.resource_info import Host
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.validate import validate
from parallax_runner.config.worker_numbers import ClusterSize
from parallax_runner.errors import ConfigError


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without GPUs, whatever this one has."""
    set_gpus(monkeypatch, 0)


def set_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def detected() -> tuple[int, ...]:
        return tuple(range(count))

    monkeypatch.setattr(cluster_size, "detect_gpus", detected)
    monkeypatch.setattr(resource_info.read_hosts, "__kwdefaults__", {"gpus": detected})


def compose(*lines: str) -> RunConfig:
    job = Composer().job(lines)
    return validate(resolve(job), job.origins)


def numbers(*lines: str) -> tuple[int, int, int]:
    cluster = size_cluster(compose(*lines)).cluster
    return cluster.workers, cluster.replicas_per_worker, cluster.servers


@pytest.mark.parametrize("lines", ["'localhost: 0,1'", "'# here','localhost: 0,1'"])
def test_slots_are_workers_or_under_ps_replicas(lines: str) -> None:
    given = f"cluster.resource_info=[{lines}]"
    assert numbers("comm=mpi", given) == (2, 1, 1)
    assert numbers("comm=hybrid", given) == (2, 1, 1)
    assert numbers("comm=ps", given) == (1, 2, 1)


def test_a_host_without_ids_has_one_worker() -> None:
    assert numbers("comm=hybrid", "cluster.resource_info=[localhost]") == (1, 1, 1)


def test_gpus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpus(monkeypatch, 3)
    assert numbers("comm=hybrid", "cluster.resource_info=[localhost]") == (3, 1, 1)
    assert numbers("comm=ps", "cluster.resource_info=[localhost]") == (1, 3, 1)


def test_the_choice_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("# here\nlocalhost: 0,1,2\n")
    assert numbers("comm=mpi", "cluster=hosts", f"cluster.resource_info={path}") == (3, 1, 1)
    with pytest.raises(ConfigError, match=r"cluster.resource_info=\?\?\?"):
        compose("cluster=hosts")


@pytest.mark.parametrize(
    ("comm", "numbers", "expected"),
    [
        ("mpi", (1, 2, 3, 4), (4, ["a: 0,1", "b: 0,1"])),
        ("mpi", (1, 3, 8), (3, ["a: 0,1", "b: 0"])),
        ("mpi", (2,), (2, ["a: 0,1"])),
        ("ps", (1, 2, 4), (2, ["a: 0,1", "b: 0,1"])),
        ("ps", (1,), (1, ["a: 0,1"])),
        ("mpi", (5,), None),
    ],
)
def test_the_largest_number_of_workers_of_some_hosts(
    comm: str, numbers: tuple[int, ...], expected: tuple[int, list[str]] | None
) -> None:
    hosts = [Host("a", (0, 1), is_here=False), Host("b", (0, 1), is_here=False)]
    found = largest_size(hosts, numbers, mode_of(compose(f"comm={comm}").comm))
    if expected is None:
        assert found is None
    else:
        workers, lines = expected
        assert found == ClusterSize(workers, len(lines), tuple(lines))


def test_without_hosts_nothing_changes() -> None:
    config = compose()
    assert size_cluster(config) is config


def test_workers_read_the_ids_from_the_frozen_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpus(monkeypatch, 2)
    freeze(size_cluster(compose("comm=mpi", "cluster.resource_info=[localhost]")), tmp_path)
    cluster = load(tmp_path).cluster
    assert list(cluster.resource_info) == ["localhost: 0,1"]
    assert (cluster.workers, cluster.servers) == (2, 1)
    assert size_cluster(load(tmp_path)).cluster.workers == 2


@pytest.mark.parametrize("name", ["workers", "servers", "replicas_per_worker"])
def test_numbers_are_not_given_twice(name: str, tmp_path: Path) -> None:
    given = "cluster.resource_info=['localhost: 0']"
    with pytest.raises(ConfigError, match=rf"cluster.{name}=1 \(command line\): .* already sets this number"):
        compose("comm=ps", given, f"cluster.{name}=1")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\ncluster:\n  {name}: 1\n")
    job = Composer(config_dir=str(tmp_path)).job(["comm=ps", "experiment=mine", given])
    with pytest.raises(ConfigError, match=rf"cluster.{name}=1 \(.*mine.yaml:3\): .* already sets this number"):
        validate(resolve(job), job.origins)


def test_a_bad_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("localhost: 0\nelsewhere.example: x\n")
    with pytest.raises(ConfigError, match=rf"{path}:2: id 'x'"):
        compose(f"cluster.resource_info={path}")
    with pytest.raises(ConfigError, match=r"cluster.resource_info=3 \(command line\): expected the path of a file"):
        compose("cluster.resource_info=3")


def test_one_process_has_one_slot() -> None:
    assert numbers("comm=local", "cluster.resource_info=[localhost]") == (1, 1, 1)
    with pytest.raises(ConfigError, match=r"this mode runs one process, but cluster.resource_info lists 2 ids"):
        compose("comm=local", "cluster.resource_info=['localhost: 0,1']")


HERE_AND_THERE = ("cluster.resource_info=['localhost: 3,1','there.example: 0,2']", "cluster.remote_shell=sh")


def test_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers("comm=mpi", *HERE_AND_THERE) == (4, 1, 2)
    assert numbers("comm=hybrid", *HERE_AND_THERE) == (4, 1, 2)
    assert numbers("comm=ps", *HERE_AND_THERE) == (2, 2, 2)
    set_gpus(monkeypatch, 4)
    # Ranks of the second host see its ids, though this process, like a worker there, cannot tell whose they are.
    assert seen("comm=mpi", *HERE_AND_THERE, gpus=4, ranks=4) == [(3,), (1,), (0,), (2,)]
    assert seen("comm=ps", *HERE_AND_THERE, gpus=4, ranks=2) == [(3, 1), (0, 2)]


def test_whether_workers_are_on_several_hosts() -> None:
    def spans(*lines: str) -> bool:
        return spans_hosts(size_cluster(compose("comm=mpi", *lines)).cluster)

    assert not spans()
    assert not spans("cluster.resource_info=['localhost: 0,1']")
    assert spans(*HERE_AND_THERE)
    # Nobody knows where those are that somebody else starts.
    assert spans("cluster=manual", "cluster.rendezvous=file:///shared/meet")


WRONG_WITH_SEVERAL_HOSTS = {
    "under comm=ps all hosts must have the same number of ids, but there are 2 on localhost, 1 on there.example": (
        "comm=ps",
        "cluster.resource_info=['localhost: 0,1',there.example]",
    ),
    "comm/local.yaml:3): this mode runs one process on this machine, but cluster.resource_info lists another host": (
        "comm=local",
        "cluster.resource_info=[there.example]",
    ),
    "cluster.remote_shell=no-such-shell -q (command line): expected an installed program": (
        HERE_AND_THERE[0],
        "cluster.remote_shell='no-such-shell -q'",
    ),
    "a shell cannot split this command": (HERE_AND_THERE[0], "cluster.remote_shell='ssh \"'"),
}


@pytest.mark.parametrize("expected", WRONG_WITH_SEVERAL_HOSTS)
def test_what_is_refused_of_several_hosts(expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(*WRONG_WITH_SEVERAL_HOSTS[expected])
    assert expected in str(raised.value)


@pytest.mark.parametrize("fraction", ["0", "1.5", "-1"])
def test_a_fraction_is_one(fraction: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"cluster.gpu_memory_fraction={fraction} \(command line\): expected a number"
    ):
        compose(f"cluster.gpu_memory_fraction={fraction}")
    assert compose("cluster.gpu_memory_fraction=1").cluster.gpu_memory_fraction == 1


def seen(*lines: str, gpus: int, ranks: int) -> list[tuple[int, ...]]:
    cluster = size_cluster(compose(*lines)).cluster
    return [visible_gpus(cluster, rank=rank, gpus=range(gpus)) for rank in range(ranks)]


def test_each_rank_sees_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpus(monkeypatch, 4)
    assert seen("comm=mpi", gpus=4, ranks=2) == [(0,), (1,)]
    assert seen("comm=mpi", gpus=1, ranks=2) == [(0,), (0,)]
    assert seen("comm=mpi", "cluster.resource_info=['localhost: 3,1']", gpus=4, ranks=2) == [(3,), (1,)]
    assert seen("comm=ps", "cluster.resource_info=['localhost: 3,1']", gpus=4, ranks=1) == [(3, 1)]
    assert seen("comm=ps", "cluster.replicas_per_worker=2", gpus=4, ranks=2) == [(0, 1), (2, 3)]


def test_nobody_sees_a_gpu_where_there_is_none() -> None:
    assert seen("comm=mpi", "cluster.resource_info=['localhost: 0,1']", gpus=0, ranks=2) == [(), ()]
