"""Runs that several tests inspect, each made once per session when the first test asks for it, and their machines."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallax_runner.collectives.native.library import library
from tests.integration.runs import TINY_LM, Broken, Run, break_in, interrupt, launch, started
from tests.integration.slurm_cluster import Slurm, slurm_of_two_nodes
from tests.shared import shared

ENDLESS = ("train.steps=1000000", "train.log_every=20")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1200 sentences of 12 words each, from some 300 words with Zipf's frequencies."""

    def write(folder: Path) -> Path:
        draw = random.Random(1)
        words = [f"w{rank}" for rank in range(300)]
        weights = [1 / (rank + 1) for rank in range(300)]
        path = folder / "text.txt"
        path.write_text("\n".join(" ".join(draw.choices(words, weights, k=12)) for _ in range(1200)) + "\n")
        return path

    return shared(tmp_path_factory, "text", write)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this machine claim to have two GPUs."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 0\necho 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps tokenized text out of the user's own folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_cache_with_library(tmp_path_factory.mktemp("cache"))))
        yield


def _cache_with_library(folder: Path) -> Path:
    """Lets runs with this cache use the user's compiled exchanges, which take eight seconds of CPU time."""
    of_user = library().parents[1]
    found = folder / "parallax_runner" / of_user.name
    found.parent.mkdir()
    found.symlink_to(of_user)
    return folder


@pytest.fixture(scope="module")
def own_cache(caches: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Provides an empty cache of measurements and calibrations, and hides its content from the plans of other
    modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_cache_with_library(tmp_path_factory.mktemp("own_cache"))))
        yield


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two nodes, which this process and those that it starts find."""
    with slurm_of_two_nodes(tmp_path_factory.mktemp("slurm")) as running, pytest.MonkeyPatch.context() as patch:
        for name in ("SLURM_CONF", "PATH"):
            patch.setenv(name, running.environ[name])
        yield running


@pytest.fixture(scope="session")
def lm(text: Path) -> tuple[str, ...]:
    """Overrides for the smallest language model, with 2 workers and 1 server by default."""
    return ("data=text", f"data.path={text}", *TINY_LM)


@pytest.fixture(scope="session")
def tracked(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """20 steps under hybrid, recorded in `mlflow.db` of an empty folder."""
    overrides = (
        *lm,
        "comm=hybrid",
        "train.steps=20",
        "train.log_every=5",
        "tracking.run_name=tiny",
        "+tracking.tags.purpose=a test",
    )
    return shared(tmp_path_factory, "tracked", lambda cwd: launch(*overrides, cwd=cwd).expect_success())


@pytest.fixture(scope="session")
def killed_worker(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Broken:
    """A recorded run whose worker 1 was killed."""

    def kill(cwd: Path) -> Broken:
        with started(*lm, *ENDLESS, "comm=hybrid", cwd=cwd) as running:
            return break_in(running, lambda: running.member("worker", 1).kill())

    return shared(tmp_path_factory, "killed_worker", kill)


@pytest.fixture(scope="session")
def interrupted(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Broken:
    """A recorded run that was stopped by Ctrl-C."""

    def press(cwd: Path) -> Broken:
        with started(*lm, *ENDLESS, "comm=hybrid", cwd=cwd) as running:
            return break_in(running, lambda: interrupt(running))

    return shared(tmp_path_factory, "interrupted", press)


@pytest.fixture(scope="session")
def ps_partitioned(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """20 steps under ps, sparse variables in 4 pieces on 2 servers, a checkpoint every 5 steps, 2 of them kept. The
    environment names a proxy that does not answer, and TensorFlow's servers would use it."""
    overrides = (
        *lm,
        "comm=ps",
        "cluster.servers=2",
        "partition=fixed",
        "partition.num=4",
        "train.steps=20",
        "ckpt.save_steps=5",
        "ckpt.keep=2",
        "tracking=off",
    )

    def behind_a_proxy(cwd: Path) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "all_proxy"):
                patch.setenv(name, "http://127.0.0.1:9")
            return launch(*overrides, cwd=cwd).expect_success()

    return shared(tmp_path_factory, "ps_partitioned", behind_a_proxy)


@pytest.fixture(scope="session")
def simple_ps(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """10 steps of the linear regression under ps."""
    overrides = ("model=simple", "comm=ps", "train.steps=10", "tracking=off")
    return shared(tmp_path_factory, "simple_ps", lambda cwd: launch(*overrides, cwd=cwd).expect_success())


@pytest.fixture(scope="session")
def simple_hybrid(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """20 steps of the linear regression under hybrid, which equals mpi there; a checkpoint after each step."""
    overrides = (
        "model=simple",
        "comm=hybrid",
        "train.steps=20",
        "train.log_every=1",
        "tracking=off",
        "ckpt.save_secs=0.000001",
        "ckpt.keep=3",
    )
    return shared(tmp_path_factory, "simple_hybrid", lambda cwd: launch(*overrides, cwd=cwd).expect_success())
