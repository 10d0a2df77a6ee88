"""Launches whose processes differ from the plan: none of them trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.runs import Run, launch

# Starts each worker as a separate process, like srun without PMIx: each forms an MPI world of its own.
MODULE = """
from parallax_runner.launch import bind_address, preloaded
from parallax_runner.launch.control import wire
from parallax_runner.launch.job import Command
from parallax_runner.launch.launchers.launcher import Launcher

ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Singles(Launcher):
    starts_mpi = True

    def workers(self, job, cleanup):
        env = job.env | preloaded.environment() | {bind_address.TOWARDS: self.address} | ALLOW_ROOT
        return [Command(job.worker_argv(), env | {wire.RANK: self.rank_of(rank)}) for rank in range(job.workers)]

    def rank_of(self, rank):
        return str(rank)


class SameRank(Singles):
    def rank_of(self, rank):
        return "0"
"""
MODEL = ("model=simple", "data=linear", "optimizer=gradient_descent", "comm=mpi", "tracking=off", "train.steps=3")


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    (tmp_path / "singles.py").write_text(MODULE)
    launcher = f"cluster.launcher=singles.{request.param}"
    return launch(*MODEL, launcher, "train.max_restarts=3", cwd=tmp_path, python_path=tmp_path)


@pytest.mark.parametrize("run", ["Singles"], indirect=True)
def test_single_processes_in_place_of_one_world_do_not_train(run: Run) -> None:
    assert run.exit_status == 1
    assert "is alone in an MPI world of 1 process, expected one world of 2 workers" in run.summary["error"]
    assert run.summary["error"].startswith("worker ")
    assert run.losses() == {}
    assert run.summary["restarts"] == 0, "it would come again"


@pytest.mark.parametrize("run", ["SameRank"], indirect=True)
def test_two_processes_of_one_rank_do_not_train(run: Run) -> None:
    assert run.exit_status == 1
    assert "reports that it is worker 0, as does pid " in run.summary["error"]
    assert "expected 2 workers and 0 servers" in run.summary["error"]
    assert run.losses() == {}
