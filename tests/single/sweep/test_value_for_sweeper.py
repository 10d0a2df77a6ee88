"""What a sweeper gets of a job: its objective, or the worst number if Optuna cannot compare it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from parallax_runner.sweep.job import value_for_sweeper
from parallax_runner.sweep.ledger import Job, Ledger, Standing

JOB = Job("comm-mpi", "comm=mpi", ("comm=mpi",), "/runs/comm-mpi")
FINISHED = Standing(JOB, "finished", pid=0, objective=1.5, objective_name="training loss")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger of a sweep whose first job was compared by its training loss."""
    ledger = Ledger(tmp_path)
    ledger.append("sweep_started")
    ledger.append("finished", JOB, **FINISHED.objective_fields())
    return ledger


def hydra(sweeper: str, direction: str = "minimize") -> DictConfig:
    return OmegaConf.create({"sweeper": {"_target_": f"hydra.{sweeper}", "direction": direction}})


OPTUNA = hydra("OptunaSweeper")


def test_an_objective_is_handed_on(ledger: Ledger) -> None:
    assert value_for_sweeper(FINISHED, ledger, OPTUNA) == 1.5


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "failed"},
        {"objective": math.nan},  # it diverged
        {"objective": None},  # it was resumed, and no step was left
        {"objective_name": "validation loss"},
    ],
)
def test_optuna_gets_the_worst_number_of_a_job_that_it_cannot_compare(fields: dict[str, Any], ledger: Ledger) -> None:
    standing = dataclasses.replace(FINISHED, **fields)
    assert value_for_sweeper(standing, ledger, OPTUNA) == math.inf
    assert value_for_sweeper(standing, ledger, hydra("OptunaSweeper", "maximize")) == -math.inf
    assert value_for_sweeper(standing, ledger, hydra("BasicSweeper")) is None


def test_another_objective_is_told(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    value_for_sweeper(dataclasses.replace(FINISHED, objective_name="validation loss"), ledger, OPTUNA)
    assert "its objective (validation loss) cannot be compared with the objective of the first job (training loss)" in (
        capsys.readouterr().err
    )
