"""The sweeps over the folds and the days of a table, and a schedule over a restart, as a user starts them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.integration.runs import launch

ARGUMENTS = ("train.steps=4", "data.batch_size=16", "comm=local", "ckpt=off", "tracking=off")


@pytest.fixture
def rows(tmp_path: Path) -> tuple[str, ...]:
    """Returns the arguments for a file of eight days."""
    draw = np.random.default_rng(1)
    lines = [f"{1 + row // 50},u{draw.integers(9)},{draw.normal():.3f},{draw.integers(2)}" for row in range(400)]
    (tmp_path / "clicks.csv").write_text("\n".join(["day,user,price,clicked", *lines]) + "\n")
    columns = "data.columns={user:category,price:number,clicked:label}"
    return (f"data.train={tmp_path / 'clicks.csv'}", columns, f"data.cache_dir={tmp_path / 'cache'}")


@pytest.mark.parametrize(("experiment", "jobs"), [("folds", 5), ("backtest", 3)])
def test_a_sweep_tells_the_mean_of_its_jobs(experiment: str, jobs: int, rows: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    arguments = (f"experiment={experiment}", *rows, *ARGUMENTS, f"hydra.sweep.dir={folder}")
    run = launch(*arguments, cwd=tmp_path, name="sweep").expect_success()
    found = json.loads((folder / "results.json").read_text())
    objectives = [one["objective"] for one in found["jobs"]]
    assert len(objectives) == len(set(objectives)) == jobs
    (mean,) = found["means"]
    assert mean["mean"] == pytest.approx(np.mean(objectives))
    assert mean["standard_deviation"] == pytest.approx(np.std(objectives, ddof=1))
    assert f"mean validation loss of {jobs} jobs: {np.mean(objectives):.5g}, standard deviation" in run.stderr


def test_a_resumed_run_goes_on_with_the_schedule_in_other_passes(tmp_path: Path) -> None:
    schedule = "update.schedule={warmup_steps:3,decay:cosine,decay_steps:5}"
    arguments = ("model=simple", "comm=local", "tracking=off", "data.batch_size=12", schedule)
    whole = launch(*arguments, "train.steps=8", cwd=tmp_path, name="whole").expect_success()
    half = launch(*arguments, "train.steps=4", "train.accumulate_steps=3", cwd=tmp_path, name="half").expect_success()
    resume = (f"ckpt.resume={half.run_dir}", "train.accumulate_steps=2")
    resumed = launch(*arguments, "train.steps=8", *resume, cwd=tmp_path, name="resumed").expect_success()
    assert resumed.summary["loss_last"] == pytest.approx(whole.summary["loss_last"], rel=1e-5)
