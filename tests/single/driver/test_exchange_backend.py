"""What carries messages among ranks, and why."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from parallax_runner.config import cluster_size
from parallax_runner.config.schema import MpiConfig, RunConfig
from parallax_runner.driver.exchange_backend import ChosenBackend, check_allgatherv, chosen_backend
from parallax_runner.errors import ConfigError


def config_of(comm: str = "mpi", backend: str = "auto", launcher: str = "auto") -> RunConfig:
    config = RunConfig()
    return dataclasses.replace(
        config,
        action="train",
        comm=dataclasses.replace(config.comm, name=comm, backend=backend, mpi=MpiConfig(use_allgatherv=False)),
        cluster=dataclasses.replace(
            config.cluster, launcher=launcher, workers=2, replicas_per_worker=1, resource_info=None
        ),
    )


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and no compiler on PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def no_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod cannot be found, as if it were not installed."""
    monkeypatch.setitem(sys.modules, "horovod", None)


@pytest.mark.parametrize("backend", ["native", "horovod"])
def test_the_choice_of_the_user_is_taken(backend: str) -> None:
    assert chosen_backend(config_of(backend=backend)) == ChosenBackend(backend, f"comm.backend={backend}")


@pytest.mark.parametrize("comm", ["local", "ps"])
def test_a_mode_without_exchanges_has_no_choice(comm: str, no_compiler: None, no_horovod: None) -> None:
    assert chosen_backend(config_of(comm, "native")).reason == f"comm={comm} exchanges nothing among ranks"


def test_a_mode_without_exchanges_has_a_backend_that_its_launcher_can_start(no_horovod: None) -> None:
    """A launcher without mpirun asks the backend for the variables of the ranks."""
    assert chosen_backend(config_of("ps", launcher="manual")).name == "horovod"


def test_native_exchanges_without_a_compiler_are_refused(no_compiler: None) -> None:
    with pytest.raises(ConfigError, match=r"backend=native: .* need a C.. compiler, .* or use comm.backend=horovod"):
        chosen_backend(config_of(backend="native"))


def test_native_exchanges_on_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_size, "detect_gpus", lambda: (0, 1))
    with pytest.raises(ConfigError, match=r"comm.backend=native: workers use GPUs, .*; use comm.backend=horovod"):
        chosen_backend(config_of(backend="native"))


def test_horovod_that_is_asked_for_must_be_installed(no_horovod: None) -> None:
    with pytest.raises(ConfigError, match=r"backend=horovod: Horovod is not installed; .*scripts/setup --horovod"):
        chosen_backend(config_of(backend="horovod"))


@pytest.mark.parametrize("comm", ["mpi", "sharded", "hybrid", "auto"])
@pytest.mark.parametrize("launcher", ["auto", "slurm"])
def test_by_default_native_exchanges_are_chosen(launcher: str, comm: str) -> None:
    assert chosen_backend(config_of(comm, launcher=launcher)) == ChosenBackend("native", "comm.backend=auto")


def test_by_default_native_exchanges_are_chosen_without_horovod(no_horovod: None) -> None:
    assert chosen_backend(config_of()) == ChosenBackend("native", "comm.backend=auto")


def test_without_a_compiler_horovod_is_chosen_and_the_reason_is_told(no_compiler: None) -> None:
    reason = "comm.backend=auto, and the native exchanges need a C++ compiler, and none is on PATH"
    assert chosen_backend(config_of()) == ChosenBackend("horovod", reason)


def test_on_gpus_horovod_is_chosen_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_size, "detect_gpus", lambda: (0, 1))
    reason = "comm.backend=auto, and workers use GPUs, which the native exchanges do not support"
    assert chosen_backend(config_of()) == ChosenBackend("horovod", reason)


@pytest.mark.parametrize("launcher", ["manual", "kubernetes"])
def test_without_mpirun_horovod_is_chosen_and_the_reason_is_told(launcher: str) -> None:
    reason = f"comm.backend=auto, and the native exchanges need mpirun, which cluster={launcher} does not use"
    assert chosen_backend(config_of(launcher=launcher)) == ChosenBackend("horovod", reason)


def test_without_horovod_and_a_compiler_one_sentence_has_both_remedies(no_horovod: None, no_compiler: None) -> None:
    with pytest.raises(ConfigError) as refused:
        chosen_backend(config_of())
    message = str(refused.value)
    assert message.count("scripts/setup --horovod") == message.count("apt-get install g++") == 1
    assert message.startswith("comm.backend=auto: the native exchanges need a C++")
    assert "and Horovod is not installed; " in message


def test_without_horovod_gpus_are_refused(no_horovod: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_size, "detect_gpus", lambda: (0, 1))
    with pytest.raises(ConfigError, match=r"workers use GPUs, .*, and Horovod is not installed; .*scripts/setup --hor"):
        chosen_backend(config_of())


def test_without_horovod_a_launcher_without_mpirun_is_refused(no_horovod: None) -> None:
    with pytest.raises(ConfigError, match=r"which cluster=manual does not use, and .* is not installed; .* --horovod"):
        chosen_backend(config_of(launcher="manual"))


def test_a_host_that_submits_the_run_needs_no_horovod(no_horovod: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_backend(config_of(launcher="kubernetes")).name == "horovod"
    monkeypatch.setenv("PARALLAX_KUBERNETES_JOB", "here")
    with pytest.raises(ConfigError, match="Horovod is not installed"):
        chosen_backend(config_of(launcher="kubernetes"))


def test_allgatherv_needs_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    asked = dataclasses.replace(config, comm=dataclasses.replace(config.comm, mpi=MpiConfig(use_allgatherv=True)))
    check_allgatherv(asked)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    check_allgatherv(config)
    with pytest.raises(ConfigError, match=r"use_allgatherv=true: mpi4py is not installed; .*scripts/setup --horovod"):
        check_allgatherv(asked)


@pytest.mark.parametrize(("name", "title"), [("native", "the native exchanges"), ("horovod", "Horovod")])
def test_the_note_names_the_backend_and_the_reason(name: str, title: str) -> None:
    assert ChosenBackend(name, "so it is").note == f"tensors are exchanged by {title}: so it is"
