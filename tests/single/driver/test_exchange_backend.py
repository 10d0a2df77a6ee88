"""What carries messages among ranks, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from parallax_runner.config import cluster_size
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.exchange_backend import ChosenBackend, chosen_backend
from parallax_runner.errors import CollectiveError, ConfigError


def config_of(comm: str = "mpi", backend: str = "auto") -> RunConfig:
    config = RunConfig()
    return dataclasses.replace(
        config,
        comm=dataclasses.replace(config.comm, name=comm, backend=backend),
        cluster=dataclasses.replace(
            config.cluster, launcher="auto", workers=2, replicas_per_worker=1, resource_info=None
        ),
    )


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and no compiler on PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.parametrize("backend", ["native", "horovod"])
def test_the_choice_of_the_user_is_taken(backend: str) -> None:
    assert chosen_backend(config_of(backend=backend)) == ChosenBackend(backend, f"comm.backend={backend}")


@pytest.mark.parametrize("comm", ["local", "ps"])
def test_a_mode_without_exchanges_has_no_choice(comm: str, no_compiler: None) -> None:
    assert chosen_backend(config_of(comm, "native")).reason == f"comm={comm} exchanges nothing among ranks"


def test_native_exchanges_without_a_compiler_are_refused(no_compiler: None) -> None:
    with pytest.raises(CollectiveError, match=r"need a C.. compiler, .* or use comm.backend=horovod"):
        chosen_backend(config_of(backend="native"))


def test_native_exchanges_on_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_size, "detect_gpus", lambda: (0, 1))
    with pytest.raises(ConfigError, match=r"comm.backend=native: workers use GPUs, .*; use comm.backend=horovod"):
        chosen_backend(config_of(backend="native"))


def test_by_default_horovod_is_chosen_also_without_a_compiler(no_compiler: None) -> None:
    assert chosen_backend(config_of()) == ChosenBackend("horovod", "comm.backend=auto")


@pytest.mark.parametrize(("name", "title"), [("native", "the native exchanges"), ("horovod", "Horovod")])
def test_the_note_names_the_backend_and_the_reason(name: str, title: str) -> None:
    assert ChosenBackend(name, "so it is").note == f"tensors are exchanged by {title}: so it is"
