"""A seed determines a run: the same losses again, whatever else changes; another seed gives other losses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.runs import Run, launch

Losses = dict[tuple[str, int], tuple[float, float]]


def sweep(arguments: tuple[str, ...], cwd: Path) -> Losses:
    """Returns the first and last loss by (comm, seed) of a sweep's jobs, 20 steps each."""
    fixed = ("train.steps=20", "tracking=off", "ckpt=off", f"hydra.sweep.dir={cwd / 'jobs'}")
    launch("-m", *arguments, *fixed, cwd=cwd).expect_success()
    losses = {}
    for path in sorted((cwd / "jobs").glob("*/summary.json")):
        summary = json.loads(path.read_text())
        config = (path.parent / "config.yaml").read_text()
        assert not (path.parent / "ckpt").exists()
        seed = int(config.split("train:")[1].split("seed: ")[1].split()[0])
        losses[summary["comm"], seed] = (summary["loss_first"], summary["loss_last"])
    return losses


@pytest.fixture(scope="module")
def losses(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Losses:
    return sweep((*lm, "comm=local,mpi", "train.seed=1,2"), tmp_path_factory.mktemp("sweep"))


def test_a_sweep_runs_every_job(losses: Losses) -> None:
    assert set(losses) == {("local", 1), ("local", 2), ("mpi", 1), ("mpi", 2)}


@pytest.mark.parametrize("comm", ["local", "mpi"])
def test_another_seed_gives_other_losses(losses: Losses, comm: str) -> None:
    assert losses[comm, 1][0] != losses[comm, 2][0]
    assert losses[comm, 1][1] != losses[comm, 2][1]


def test_the_same_seed_gives_the_same_losses(losses: Losses, lm: tuple[str, ...], tmp_path: Path) -> None:
    again = sweep((*lm, "comm=local,mpi"), tmp_path)
    assert again == {key: pair for key, pair in losses.items() if key[1] == 1}


def test_hybrid_and_mpi_agree(losses: Losses, tracked: Run) -> None:
    hybrid = (tracked.summary["loss_first"], tracked.summary["loss_last"])
    assert hybrid == pytest.approx(losses["mpi", 1], rel=1e-5)
