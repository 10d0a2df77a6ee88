"""Sweeps as a user starts them: real jobs, real databases, signals and kills."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

from parallax_runner.checkpoints.checkpoint_files import step_of
from parallax_runner.checkpoints.start import find_start
from tests.integration.runs import LAUNCH_SECS, Run, Running, launch, started
from tests.single.export.serving import served

SIMPLE = ("-m", "model=simple", "train.log_every=1000", "ckpt.save_steps=1000", "ckpt.keep=2")
TRACKED = (*SIMPLE, "tracking.log_checkpoints=none")
# Job 2 lasts long enough to be disturbed in the middle of its steps.
THREE_JOBS = (*TRACKED, "comm=local", "train.steps=5,40000,6")
NAMES = ["train.steps-5", "train.steps-40000", "train.steps-6"]


@dataclass(frozen=True)
class Sweep:
    """The files that a sweep has left."""

    run: Run

    @property
    def dir(self) -> Path:
        return self.run.run_dir

    def results(self) -> list[dict[str, Any]]:
        return json.loads((self.dir / "results.json").read_text())["jobs"]

    def events(self) -> list[tuple[str, str]]:
        """Returns each job's events since the last start."""
        lines = [json.loads(line) for line in (self.dir / "ledger.jsonl").read_text().splitlines()]
        last = max(number for number, line in enumerate(lines) if line["event"] == "sweep_started")
        return [(line["job"], line["event"]) for line in lines[last:] if "job" in line]

    def statuses(self) -> dict[str, str]:
        return {Path(one["run_dir"]).name: one["status"] for one in self.results()}

    def summary(self, name: str) -> dict[str, Any]:
        return json.loads((self.dir / name / "summary.json").read_text())


def sweep(*arguments: str, cwd: Path, name: str = "sweep", is_forked: bool = True) -> Sweep:
    return Sweep(launch(*arguments, f"hydra.sweep.dir={cwd / name}", cwd=cwd, name=name, is_forked=is_forked))


def broken_sweep(*arguments: str, cwd: Path, when: Callable[[], bool], act: Callable[[Running], None]) -> Sweep:
    """A sweep that was disturbed at a certain moment; none of its processes is left."""
    with started(*arguments, f"hydra.sweep.dir={cwd / 'sweep'}", cwd=cwd, name="sweep") as running:
        deadline = time.monotonic() + LAUNCH_SECS
        while not when():
            assert running.process.poll() is None, running.wait().stderr
            assert time.monotonic() < deadline, "the moment to disturb the sweep never came"
            time.sleep(0.02)
        family = psutil.Process(running.process.pid).children(recursive=True)
        act(running)
        run = running.wait()
        _, left = psutil.wait_procs(family, 30)
        for process in left:
            process.kill()
        assert not left
        return Sweep(run)


def newest_step(run_dir: Path) -> int:
    """Returns the step of the newest checkpoint; 0 without any."""
    return max((int(path.stem.rpartition("-")[2]) for path in run_dir.glob("ckpt/model.ckpt-*.index")), default=0)


def mlflow_runs(cwd: Path) -> tuple[MlflowRun, list[MlflowRun]]:
    """Returns the only parent and its children; the database in `cwd` has no other runs."""
    client = MlflowClient(f"sqlite:///{cwd / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("parallax_runner")
    runs = client.search_runs([experiment.experiment_id])
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    (parent,) = [run for run in runs if run not in children]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    return parent, children


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Three jobs, with Ctrl-C in the middle of the second."""
    cwd = tmp_path_factory.mktemp("three")
    return broken_sweep(
        *THREE_JOBS,
        cwd=cwd,
        when=lambda: newest_step(cwd / "sweep" / NAMES[1]) > 0,
        act=lambda running: running.process.send_signal(signal.SIGINT),
    )


def test_ctrl_c_ends_the_job_and_the_sweep(interrupted: Sweep) -> None:
    assert interrupted.run.exit_status == 130, interrupted.run.stderr
    assert interrupted.statuses() == dict(zip(NAMES, ["finished", "interrupted", "not run"], strict=True))
    assert interrupted.summary(NAMES[1])["status"] == "interrupted"
    assert newest_step(interrupted.dir / NAMES[1]) == interrupted.summary(NAMES[1])["steps"] > 0
    assert "2 of 3 jobs have not finished" in interrupted.run.stderr
    assert "unreachable" not in interrupted.run.stderr, "the database was still being created"
    assert f"hydra.sweep.dir={interrupted.dir}" in interrupted.run.stderr.splitlines()[-1]
    parent, children = mlflow_runs(interrupted.dir.parent)
    assert parent.info.status == "KILLED"
    assert sorted(child.info.status for child in children) == ["FINISHED", "KILLED"]


def test_killed_sweep_goes_on_where_it_was(interrupted: Sweep) -> None:
    """The same command twice more: killed in the middle of job 2, then to the end."""
    cwd, second = interrupted.dir.parent, interrupted.dir / NAMES[1]
    reached = newest_step(second)
    killed = broken_sweep(
        *THREE_JOBS, cwd=cwd, when=lambda: newest_step(second) > reached, act=lambda running: running.process.kill()
    )
    assert killed.run.exit_status == -signal.SIGKILL
    # Its checkpoint was whole, though perhaps not in its place yet: the next start moves it there.
    written = find_start("auto", second / "ckpt").prefix
    assert written is not None
    reached_then = step_of(written)
    assert reached < reached_then < 40000

    done = sweep(*THREE_JOBS, cwd=cwd)
    assert done.run.exit_status == 0, done.run.stderr
    assert f"sweep {done.dir}: 1 finished, 1 continues at step {reached_then}, 1 to do\n" in done.run.stderr
    assert done.events() == [
        (NAMES[0], "skipped"),
        *((name, event) for name in NAMES[1:] for event in ("started", "finished")),
    ]
    assert set(done.statuses().values()) == {"finished"}
    assert done.summary(NAMES[1])["first_step"] == reached_then
    assert done.summary(NAMES[1])["steps"] == 40000
    assert [one["rank"] for one in done.results()] == [1, 2, 3]
    parent, children = mlflow_runs(cwd)
    assert parent.info.status == "FINISHED"
    assert [child.info.status for child in children] == ["FINISHED"] * 3
    assert {child.info.run_name for child in children} == {name.replace("-", "=") for name in NAMES}


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Four jobs, two at a time, each with two workers under mpirun."""
    return sweep(
        *TRACKED,
        *("comm=mpi,hybrid", "train.seed=2,1", "train.steps=5"),
        *("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
        cwd=tmp_path_factory.mktemp("parallel"),
        is_forked=False,  # joblib starts processes that inherit more than a fork gets
    )


def test_jobs_at_the_same_time_do_not_collide(parallel: Sweep) -> None:
    assert parallel.run.exit_status == 0, parallel.run.stderr
    assert set(parallel.statuses().values()) == {"finished"}
    lines = [json.loads(line) for line in (parallel.dir / "ledger.jsonl").read_text().splitlines()]
    assert len({line["pid"] for line in lines if line["event"] == "started"}) == 2, "two processes ran jobs"
    # Data and draws depend only on the seed, so the modes agree.
    by_seed: dict[str, list[float]] = {}
    for one in parallel.results():
        by_seed.setdefault(one["job"].rpartition("=")[2], []).append(one["objective"])
    assert by_seed["1"][0] == pytest.approx(by_seed["1"][1], rel=1e-5)
    assert by_seed["2"][0] == pytest.approx(by_seed["2"][1], rel=1e-5)


def test_table_ranks_the_jobs(parallel: Sweep) -> None:
    results = parallel.results()
    assert [one["rank"] for one in results] == [1, 2, 3, 4]
    assert [one["objective"] for one in results] == sorted(one["objective"] for one in results)
    rows = re.findall(r"^│ +(\d) │ (\S+) +│ finished │", parallel.run.stderr, re.M)
    assert rows == [(str(one["rank"]), one["job"]) for one in results]
    assert (parallel.dir / "sweep.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((parallel.dir / "results.json").read_text())
    assert (document["objective"], document["direction"]) == ("validation loss", "minimize")
    for one in results:
        summary = json.loads((Path(one["run_dir"]) / "summary.json").read_text())
        assert one["objective"] == summary["validation_loss"] != summary["loss_last"]


def test_parent_run_has_what_the_jobs_share_and_differ_in(parallel: Sweep) -> None:
    cwd = parallel.dir.parent
    parent, children = mlflow_runs(cwd)
    assert (parent.info.status, len(children)) == ("FINISHED", 4)
    params = parent.data.params
    assert (params["train.steps"], params["swept.comm"]) == ("5", "mpi,hybrid")
    assert json.loads(params["train.seed"]) == ["2", "1"]
    assert parent.data.tags["parallax.swept"] == "comm=mpi,hybrid train.seed=2,1"
    assert parent.data.metrics["sweep/best_objective"] == pytest.approx(parallel.results()[0]["objective"])
    client = MlflowClient(f"sqlite:///{cwd / 'mlflow.db'}")
    artifacts = {artifact.path for artifact in client.list_artifacts(parent.info.run_id)}
    assert artifacts >= {"results.json", "sweep.png", "ledger.jsonl"}


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_signal_to_the_driver_ends_parallel_jobs_well(number: int, exit_status: int, tmp_path: Path) -> None:
    names = [f"train.seed-{seed}" for seed in (1, 2, 3)]
    stopped = broken_sweep(
        *SIMPLE,
        *("comm=local", "train.steps=100000000", "train.seed=1,2,3", "tracking=off"),
        *("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
        cwd=tmp_path,
        when=lambda: all(newest_step(tmp_path / "sweep" / name) > 0 for name in names[:2]),
        act=lambda running: running.process.send_signal(number),
    )
    assert stopped.run.exit_status == exit_status, stopped.run.stderr
    assert Counter(stopped.events()) == Counter(
        (name, event) for event in ("started", "interrupted") for name in names[:2]
    )
    for name in names[:2]:
        summary = stopped.summary(name)
        assert summary["status"] == "interrupted"
        assert newest_step(stopped.dir / name) == summary["steps"], "a checkpoint is saved at the signal"
    if number == signal.SIGTERM:
        assert stopped.statuses() == dict(zip(names, ["interrupted", "interrupted", "not run"], strict=True))


# Without examples the data cannot be read.
ONE_FAILS = (*SIMPLE, "comm=local", "train.steps=3", "data.examples=0,2000", "tracking=off")


def test_after_a_failed_job_the_others_run(tmp_path: Path) -> None:
    first = sweep(*ONE_FAILS, cwd=tmp_path)
    assert first.run.exit_status == 2, first.run.stderr
    assert first.statuses() == {"data.examples-0": "failed", "data.examples-2000": "finished"}
    assert [one["rank"] for one in first.results()] == [1, None]
    assert "data.examples=0" in first.results()[1]["error"]
    again = sweep(*ONE_FAILS, cwd=tmp_path)
    assert again.run.exit_status == 2
    assert Counter(again.events()) == Counter(
        [("data.examples-0", "started"), ("data.examples-0", "failed"), ("data.examples-2000", "skipped")]
    )


SEES = """
import os
import time

import tensorflow.compat.v1 as tf

from models import simple


def build(features, optimizer):
    with open(f"seen_{os.getpid()}", "w") as file:
        file.write(os.environ["CUDA_VISIBLE_DEVICES"])
    time.sleep(2)
    return simple.build(features, optimizer)
"""


def test_each_job_at_a_time_has_a_gpu_of_its_own(tmp_path: Path, two_gpus: None) -> None:
    """The model sees which GPU it was given."""
    (tmp_path / "sees.py").write_text(SEES)
    arguments = ("-m", "model._target_=sees.build", "model=simple", "tracking=off", "comm=local", "train.steps=2")
    jobs = ("train.seed=1,2,3,4", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "sweep.device_per_job=true")
    run = sweep(*arguments, *jobs, cwd=tmp_path, is_forked=False)
    assert run.run.exit_status == 0, run.run.stderr
    assert {path.read_text() for path in tmp_path.glob("seen_*")} == {"0", "1"}
    assert sorted(path.name for path in (run.dir / "devices").iterdir()) == ["gpu_0.lock", "gpu_1.lock"]


def test_an_ensemble_of_the_best_jobs(tmp_path: Path) -> None:
    run = sweep(*SIMPLE, "comm=local", "train.steps=5,20,10", "sweep.ensemble=2", cwd=tmp_path)
    assert run.run.exit_status == 0, run.run.stderr
    said = f"ensemble of train.steps=20, train.steps=10: mean of prediction; {run.dir / 'ensemble'}"
    assert said in run.run.stderr
    x = np.float32([1, 2])
    folders = [run.dir / f"train.steps-{steps}" / "saved_model" for steps in (20, 10)]
    ours, *members = [served(folder, x=x)["prediction"] for folder in (run.dir / "ensemble", *folders)]
    np.testing.assert_allclose(ours, np.mean(members, axis=0), rtol=1e-6)
    assert not np.allclose(*members)


def test_fail_fast_starts_no_other(tmp_path: Path) -> None:
    run = sweep(*ONE_FAILS, "sweep.fail_fast=true", cwd=tmp_path)
    assert run.run.exit_status == 2, run.run.stderr
    assert run.statuses() == {"data.examples-0": "failed", "data.examples-2000": "not run"}
    assert not (run.dir / "data.examples-2000").exists()


def test_optuna_chooses_values_and_a_study_goes_on(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    study = f"sqlite:///{tmp_path / 'optuna.db'}"
    command = (
        *TRACKED,
        *("comm=local", "train.steps=20", "optimizer.learning_rate=interval(0.001,0.5)"),
        *("hydra/sweeper=optuna", f"hydra.sweeper.storage={study}", "hydra.sweeper.study_name=rates"),
        "hydra.sweeper.n_jobs=1",
    )
    first = sweep(*command, "hydra.sweeper.n_trials=3", "hydra.sweeper.sampler.seed=1", cwd=tmp_path)
    assert first.run.exit_status == 0, first.run.stderr
    assert len(first.results()) == 3
    second = sweep(*command, "hydra.sweeper.n_trials=2", "hydra.sweeper.sampler.seed=2", cwd=tmp_path)
    assert second.run.exit_status == 0, second.run.stderr
    assert len(second.results()) == 5, "each trial has its own folder, whatever its number"
    trials = optuna.load_study(study_name="rates", storage=study).trials
    assert sorted(trial.value for trial in trials) == pytest.approx([one["objective"] for one in second.results()])
    parent, children = mlflow_runs(tmp_path)
    assert (parent.info.status, len(children)) == ("FINISHED", 5)
    assert parent.data.metrics["sweep/best_objective"] == pytest.approx(second.results()[0]["objective"])


def test_optuna_looks_in_the_direction_of_a_metric(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    study = f"sqlite:///{tmp_path / 'optuna.db'}"
    command = (
        *("-m", "experiment=dlrm_keras", "comm=local", "train.steps=4", "train.objective=auc", "tracking=off"),
        *("model.max_rows=200", "data.examples=2000", "data.validation_examples=200"),
        *("model.learning_rate=choice(0.01,0.1)", "hydra/sweeper=optuna", f"hydra.sweeper.storage={study}"),
        *("hydra.sweeper.study_name=auc", "hydra.sweeper.n_jobs=1", "hydra.sweeper.n_trials=1"),
    )
    refused = sweep(*command, "hydra.sweeper.direction=minimize", cwd=tmp_path, name="refused")
    assert refused.run.exit_status == 2
    assert "expected maximize, the direction of the objective «auc»" in refused.run.stderr
    done = sweep(*command, cwd=tmp_path)
    assert done.run.exit_status == 0, done.run.stderr
    found = optuna.load_study(study_name="auc", storage=study)
    assert found.direction == optuna.study.StudyDirection.MAXIMIZE
    assert found.best_value == pytest.approx(done.results()[0]["objective"])
