"""`partition=search` with real trials: what is launched, told, recorded, and reused."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from mlflow import MlflowClient

from parallax_runner.search.trial import Curve
from tests.integration.runs import LAUNCH_SECS, Run, Running, interrupt, launch, started

SEARCH = ("comm=hybrid", "partition=search", "partition.max=4", "partition.steps_per_trial=6")


@pytest.fixture(scope="module")
def searched(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """4 recorded steps after a search on 1 server."""
    cwd = tmp_path_factory.mktemp("searched")
    return launch(*lm, *SEARCH, "train.steps=4", cwd=cwd).expect_success()


@pytest.fixture(scope="module")
def resumed(searched: Run, lm: tuple[str, ...]) -> Run:
    """2 steps more in the same folder, once what it will replace has been read."""
    assert searched.summary and searched.plan
    return launch(*lm, *SEARCH, "train.steps=6", cwd=searched.run_dir.parent).expect_success()


def choice_of(run: Run) -> dict[str, Any]:
    return json.loads((run.run_dir / "search" / "choice.json").read_text())


def partitions_in(plan: dict[str, Any]) -> set[int]:
    return {max(1, len(one["shards"])) for one in plan["variables"] if one["gradient"] == "sparse"}


def test_the_summary_has_candidates_times_curve_and_choice(searched: Run) -> None:
    summary = searched.summary
    candidates, times_ms = summary["partition_candidates"], summary["partition_step_ms"]
    assert candidates == [1, 2, 4]
    assert len(times_ms) == len(candidates) and min(times_ms) > 0
    curve = Curve(*(summary[f"partition_theta{number}_ms"] for number in range(3)))
    assert summary["partition_choice"] == min(range(1, 5), key=curve.secs)
    assert (summary["status"], summary["action"], summary["steps"]) == ("finished", "train", 4)


def test_each_trial_is_told_in_a_line(searched: Run) -> None:
    told = re.findall(r"^search: (\d+) partitions?: (\S+) ms a step$", searched.stderr, re.M)
    assert [int(number) for number, _ in told] == searched.summary["partition_candidates"]
    assert [float(ms) for _, ms in told] == pytest.approx(searched.summary["partition_step_ms"], rel=1e-3)


def test_trials_are_real_runs_of_so_many_pieces_that_leave_nothing_trained(searched: Run) -> None:
    for number in searched.summary["partition_candidates"]:
        folder = searched.run_dir / "search" / f"partitions_{number}"
        assert partitions_in(json.loads((folder / "plan.json").read_text())) == {number}
        assert {path.name for path in (folder / "logs").iterdir()} >= {"worker_0.log", "worker_1.log", "server_0.log"}
        assert not (folder / "ckpt").exists() and not (folder / "journal.jsonl").exists()
    for trial in choice_of(searched)["trials"]:
        assert len(trial["step_secs"]) == 3  # the second half of 6


def test_the_training_begins_at_its_first_step_with_the_choice(searched: Run) -> None:
    assert searched.summary["first_step"] == 0
    assert partitions_in(searched.plan) == {searched.summary["partition_choice"]}
    assert f"num: {searched.summary['partition_choice']}" in (searched.run_dir / "config.yaml").read_text()
    assert searched.sidecar(4)["examples"] == 4 * searched.summary["global_batch"]


def test_times_and_plot_are_in_mlflow(searched: Run) -> None:
    summary = searched.summary
    client = MlflowClient(f"sqlite:///{searched.run_dir.parent / 'mlflow.db'}")
    run_id = summary["mlflow_run_id"]
    for key in ("search/step_ms", "search/fitted_step_ms"):
        history = client.get_metric_history(run_id, key)
        assert sorted(one.step for one in history) == sorted(summary["partition_candidates"])
        if key == "search/step_ms":
            measured = dict(zip(summary["partition_candidates"], summary["partition_step_ms"], strict=True))
            assert {one.step: one.value for one in history} == pytest.approx(measured)
    run = client.get_run(run_id)
    assert run.data.params["partition.num"] == str(summary["partition_choice"])
    assert run.data.metrics["search/partitions"] == summary["partition_choice"]
    artifacts = {one.path for folder in ("plots", "search") for one in client.list_artifacts(run_id, folder)}
    assert artifacts >= {"plots/partition_search.png", "search/choice.json"}
    assert imread(searched.run_dir / "plots" / "partition_search.png").size


def test_a_resumed_run_keeps_the_choice_and_tries_nothing(searched: Run, resumed: Run) -> None:
    assert re.search(r"^search: \d partitions?, as an earlier run in .* has found$", resumed.stderr, re.M)
    assert "ms a step" not in resumed.stderr
    fields = [key for key in searched.summary if key.startswith("partition_")]
    assert {key: resumed.summary[key] for key in fields} == {key: searched.summary[key] for key in fields}
    assert partitions_in(resumed.plan) == partitions_in(searched.plan)
    assert (resumed.summary["first_step"], resumed.summary["steps"]) == (4, 6)


@pytest.fixture(scope="module")
def only_searched(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two servers: it begins with 2 pieces; then there is 1 left."""
    arguments = ("action=search", "cluster.servers=2", "comm=ps", "partition=search", "partition.max=2")
    cwd = tmp_path_factory.mktemp("only_searched")
    return launch(*lm, *arguments, "partition.steps_per_trial=4", "tracking=off", cwd=cwd).expect_success()


def test_action_search_tells_the_choice_and_trains_nothing(only_searched: Run) -> None:
    summary = only_searched.summary
    assert (summary["status"], summary["action"], summary["steps"]) == ("finished", "search", 0)
    assert summary["partition_candidates"] == [2, 1]
    times_ms = dict(zip(summary["partition_candidates"], summary["partition_step_ms"], strict=True))
    assert summary["partition_choice"] == min(times_ms, key=times_ms.__getitem__)  # of two points: no curve
    assert summary["partition_theta0_ms"] is None
    assert f"found: {summary['partition_choice']} partition" in only_searched.stderr
    assert partitions_in(only_searched.plan) == {summary["partition_choice"]}
    assert not only_searched.ckpt_dir.exists()
    assert only_searched.log_names() == {"driver.log"}
    assert (only_searched.run_dir / "plots" / "partition_search.png").exists()


def wait_for_step(running: Running, partitions: int) -> None:
    """Until a trial's ranks are about to train."""
    log = running.run_dir / "search" / f"partitions_{partitions}" / "logs" / "worker_1.log"
    deadline = time.monotonic() + LAUNCH_SECS
    while not log.exists() or "stage initialize" not in log.read_text():
        assert running.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)


ENDLESS_TRIAL = ("comm=hybrid", "partition=search", "partition.steps_per_trial=1000000", "train.max_restarts=2")


def test_an_interrupted_trial_ends_all(lm: tuple[str, ...], tmp_path: Path) -> None:
    with started(*lm, *ENDLESS_TRIAL, "tracking=off", cwd=tmp_path) as running:
        wait_for_step(running, 1)
        interrupt(running)
        run = running.wait()
        assert running.left() == []
    assert run.exit_status == 130
    assert (run.summary["status"], run.summary["partition_candidates"]) == ("interrupted", [])
    assert run.summary["partition_choice"] is None
    assert "to go on:" in run.stderr
    assert not (run.run_dir / "search" / "choice.json").exists()


def test_a_trial_that_fails_fails_the_run_and_is_named(lm: tuple[str, ...], tmp_path: Path) -> None:
    with started(*lm, *ENDLESS_TRIAL, "partition.min=3", "tracking=off", cwd=tmp_path) as running:
        wait_for_step(running, 3)
        running.member("worker", 1).kill()
        run = running.wait()
    assert run.exit_status == 1
    error = run.summary["error"]
    assert (run.summary["status"], run.summary["restarts"]) == ("failed", 0)
    assert "worker 1" in error and "SIGKILL" in error
    assert "in the trial of 3 partitions" in error and str(run.run_dir / "search" / "partitions_3" / "logs") in error
    assert json.loads((run.run_dir / "failure.json").read_text())["reason"] == error


def test_a_plan_tells_where_the_search_would_begin(lm: tuple[str, ...], tmp_path: Path) -> None:
    run = launch(*lm, *SEARCH, "action=plan", "partition.min=2", cwd=tmp_path).expect_success()
    run.expect_nothing_started()
    assert "partition=search begins with 2 and tries 2 to 4 pieces" in run.plan["notes"]


def test_without_sparse_variables_there_is_nothing_to_search(tmp_path: Path) -> None:
    arguments = ("model=simple", "comm=ps", "partition=search", "tracking=off", "train.steps=1")
    run = launch(*arguments, "action=search", cwd=tmp_path / "alone")
    assert run.exit_status == 2
    assert "action=search: no sparse variable is on a server" in run.stderr
    run.expect_nothing_started()
    run = launch(*arguments, cwd=tmp_path / "in train").expect_success()
    assert "partition=search searches for nothing: no sparse variable is on a server" in run.plan["notes"]
    assert "partition_choice" not in run.summary
