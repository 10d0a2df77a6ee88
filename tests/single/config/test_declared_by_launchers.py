"""What the rules and the driver ask about a launcher: its class declares it, also a class of another package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

from parallax_runner.config.cluster_size import size_cluster, spans_hosts
from parallax_runner.config.compose import Composer
from parallax_runner.config.launchers import AUTO, BUILT_IN, declared_by, owners_of_key
from parallax_runner.config.schema import ClusterConfig, RunConfig
from parallax_runner.driver.check import check, validated
from parallax_runner.driver.only_driver import check_started_once
from parallax_runner.errors import ConfigError
from parallax_runner.launch.launchers.launcher import Launcher
from parallax_runner.launch.launchers.slurm import batch_job
from tests.single.driver.test_only_driver import MPIRUN, SRUN, TF_CONFIG

MODULE = """
from parallax_runner.launch.launchers.launcher import Launcher
from parallax_runner.launch.launchers.manual.manual_launcher import Manual
from parallax_runner.launch.launchers.slurm.slurm_launcher import Slurm


class OwnSlurm(Slurm):
    pass


class OwnManual(Manual):
    has_options = True


class Batch(Launcher):
    own_keys = ("nodes",)
    starts_mpi = True

    @classmethod
    def host_lines(cls, cluster):
        return tuple(f"batch{number}: 0,1" for number in range(cluster.nodes))
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_launchers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "own_launchers", sys)  # so that the module is removed from it afterwards
    del sys.modules["own_launchers"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def config_of(*overrides: str) -> RunConfig:
    return validated(Composer().job(["comm=mpi", *overrides]))


def test_a_subclass_of_slurms_launcher_is_a_slurm_job(capsys: pytest.CaptureFixture[str]) -> None:
    own = ("cluster=slurm", "cluster.launcher=own_launchers.OwnSlurm", "cluster.nodes=3")
    config = config_of(*own)
    assert size_cluster(config).cluster.workers == 6
    assert batch_job.is_to_submit(config)
    check_started_once("own_launchers.OwnSlurm", environ=SRUN)
    with pytest.raises(ConfigError, match="OMPI_COMM_WORLD_SIZE=2"):
        check_started_once("own_launchers.OwnSlurm", environ=MPIRUN)
    with pytest.raises(ConfigError, match=r"cluster.time_limit=soon \(command line\): expected sbatch's format"):
        config_of(*own, "cluster.time_limit=soon")
    check(get_args_parser().parse_args(["comm=mpi", *own]))
    assert capsys.readouterr().err == "", "its keys have an effect"


def test_processes_of_a_subclass_of_manual_stand_by() -> None:
    own = ("cluster=manual", "cluster.launcher=own_launchers.OwnManual")
    config = config_of(*own, "cluster.rendezvous=tcp://a:1")
    assert spans_hosts(config.cluster)
    for environ in (MPIRUN, SRUN, TF_CONFIG):
        check_started_once("own_launchers.OwnManual", environ=environ)
    with pytest.raises(ConfigError, match=r"^cluster\.rendezvous=a .*expected file:///"):
        config_of(*own, "cluster.rendezvous=a")


def test_a_launcher_with_an_allocation_determines_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    own = ("cluster.launcher=own_launchers.Batch", "cluster.nodes=3")
    sized = size_cluster(config_of(*own)).cluster
    assert (sized.workers, sized.resource_info) == (6, ("batch0: 0,1", "batch1: 0,1", "batch2: 0,1"))
    check(get_args_parser().parse_args(["comm=mpi", *own, "+cluster.options.queue=a"]))
    assert capsys.readouterr().err == "", "the key and the option have an effect"


def test_options_have_no_effect_without_the_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["comm=local", "cluster.launcher=own_launchers.Batch", "+cluster.options.queue=a"]
    check(get_args_parser().parse_args(own))
    assert capsys.readouterr().err.count("under comm=local the driver starts the only process itself") == 2


@pytest.mark.parametrize("name", ["slrum", "no_such.Launcher", "json.dumps"])
def test_a_name_without_a_launcher_declares_nothing(name: str) -> None:
    assert declared_by(name) is Launcher
    with pytest.raises(ConfigError, match=f"^cluster.launcher={name} "):
        config_of(f"cluster.launcher={name}", "cluster.nodes=3")


def test_each_key_of_one_launcher_is_a_key_of_cluster() -> None:
    for name in BUILT_IN:
        assert set(declared_by(name).own_keys) <= set(ClusterConfig.__dataclass_fields__)
        assert all(name in owners_of_key(key) for key in declared_by(name).own_keys)
    assert owners_of_key("workers") == []
    assert owners_of_key("follow") == ["slurm", "kubernetes"]
    assert declared_by(AUTO) is declared_by("hosts")
