"""`partition=search` with real trials: launches, messages, records, and reuse."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from matplotlib.image import imread
from mlflow import MlflowClient

from parallax_runner.checkpoints.checkpoint_files import list_checkpoints, read_sidecar
from parallax_runner.search.trial import WARM_UP_STEPS
from tests.integration.runs import LAUNCH_SECS, SIZE, VOCAB_SIZE, Run, Running, interrupt, launch, started

SEARCH = ("comm=hybrid", "cluster.servers=2", "partition=search", "partition.max=4", "partition.steps_per_trial=4")
STEPS = 60
TRIAL_STEPS = WARM_UP_STEPS + 4


@pytest.fixture(scope="module")
def searched(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Recorded steps on 2 servers, the first of them in trials."""
    cwd = tmp_path_factory.mktemp("searched")
    arguments = (f"train.steps={STEPS}", "train.log_every=1", "ckpt.save_steps=1", f"ckpt.keep={STEPS}")
    return launch(*lm, *SEARCH, *arguments, cwd=cwd).expect_success()


def choice_of(run: Run) -> dict[str, Any]:
    return json.loads((run.run_dir / "search" / "choice.json").read_text())


def partitions_in(plan: dict[str, Any]) -> int:
    return max(len(one["shards"]) for one in plan["variables"] if one["gradient"] == "sparse")


def test_the_summary_has_candidates_times_curve_and_choice(searched: Run) -> None:
    summary = searched.summary
    candidates, times_ms = summary["partition_candidates"], summary["partition_step_ms"]
    assert candidates[:2] == [2, 4] or candidates[:2] == [2, 1]
    assert len(times_ms) == len(summary["partition_error_ms"]) == len(candidates) and min(times_ms) > 0
    assert summary["partition_choice"] in candidates
    assert (summary["status"], summary["action"], summary["steps"]) == ("finished", "train", STEPS)
    assert summary["partition_search_steps"] == len(candidates) * TRIAL_STEPS < STEPS
    assert summary["partition_search_secs"] > 0


def test_each_trial_is_told_in_a_line(searched: Run) -> None:
    told = re.findall(r"^search: (\d+) partitions?: (\S+) ms a step ± \S+$", searched.stderr, re.M)
    assert told
    assert [int(number) for number, _ in told] == searched.summary["partition_candidates"]
    assert [float(ms) for _, ms in told] == pytest.approx(searched.summary["partition_step_ms"], rel=1e-3)


def test_trials_are_steps_of_the_training_in_the_same_processes(searched: Run) -> None:
    assert {"driver.log", "worker_0.log", "worker_1.log", "server_0.log", "server_1.log"} <= searched.log_names()
    assert not list((searched.run_dir / "search").glob("partitions_*"))
    assert (searched.run_dir / "logs" / "driver.log").read_text().count("started pid") == 3  # mpirun and two servers
    assert [len(trial["step_secs"]) for trial in choice_of(searched)["trials"]] == [4] * len(
        searched.summary["partition_candidates"]
    )
    # Every step belongs to the training, and each occurs once.
    assert (searched.summary["first_step"], sorted(searched.losses())) == (0, list(range(1, STEPS + 1)))


def test_checkpoints_of_all_segments_are_whole_and_of_one_stream(searched: Run) -> None:
    """Trained values move smoothly from step to step: no change of the plan has mixed or lost rows."""
    batch = searched.summary["global_batch"]
    saved = [path for path in list_checkpoints(searched.ckpt_dir)]
    assert len(saved) > STEPS // 4
    shapes = tf.train.load_checkpoint(str(saved[-1])).get_variable_to_shape_map()
    assert shapes["embedding"] == [VOCAB_SIZE, SIZE] and not any("rows_" in name or "shard" in name for name in shapes)
    before: dict[str, np.ndarray] = {}
    for prefix in saved:
        sidecar = read_sidecar(prefix)
        assert sidecar.examples == sidecar.step * batch
        reader = tf.train.load_checkpoint(str(prefix))
        values = {name: reader.get_tensor(name) for name in shapes}
        assert values["global_step"] == sidecar.step
        for name in ("embedding", "softmax_w", "embedding/Adagrad") if before else ():
            # A batch touches few of the rows; mixed rows would change all.
            changed = np.any(values[name] != before[name], axis=1).mean()
            assert changed < 0.9, (name, sidecar.step)
        before = values


def test_the_training_goes_on_with_the_choice(searched: Run) -> None:
    assert partitions_in(searched.plan) == searched.summary["partition_choice"]
    assert f"num: {searched.summary['partition_choice']}" in (searched.run_dir / "config.yaml").read_text()
    assert searched.sidecar(STEPS)["examples"] == STEPS * searched.summary["global_batch"]


def test_times_and_plot_are_in_mlflow(searched: Run) -> None:
    summary = searched.summary
    client = MlflowClient(f"sqlite:///{searched.run_dir.parent / 'mlflow.db'}")
    run_id = summary["mlflow_run_id"]
    for key, field in (("search/step_ms", "step"), ("search/error_ms", "error")):
        history = client.get_metric_history(run_id, key)
        measured = dict(zip(summary["partition_candidates"], summary[f"partition_{field}_ms"], strict=True))
        assert measured
        assert {one.step: one.value for one in history} == pytest.approx(measured)
    run = client.get_run(run_id)
    assert run.data.params["partition.num"] == str(summary["partition_choice"])
    assert run.data.metrics["search/partitions"] == summary["partition_choice"]
    artifacts = {one.path for folder in ("plots", "search") for one in client.list_artifacts(run_id, folder)}
    assert artifacts >= {"plots/partition_search.png", "search/choice.json"}
    assert imread(searched.run_dir / "plots" / "partition_search.png").size


def test_another_run_keeps_the_choice_and_tries_nothing(searched: Run, lm: tuple[str, ...], tmp_path: Path) -> None:
    """In another folder, for the same graph, data and cluster, a run trains with the choice from the start."""
    again = launch(*lm, *SEARCH, "train.steps=3", "tracking=off", cwd=tmp_path).expect_success()
    assert re.search(r"^search: \d partitions?, found by an earlier run, in ", again.stderr, re.M)
    assert "ms a step" not in again.stderr
    fields = ("partition_candidates", "partition_step_ms", "partition_choice", "partition_theta0_ms")
    assert {key: again.summary[key] for key in fields} == {key: searched.summary[key] for key in fields}
    assert partitions_in(again.plan) == partitions_in(searched.plan)
    assert (again.summary["first_step"], again.summary["steps"]) == (0, 3)


@pytest.fixture(scope="module")
def only_searched(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two servers: the search begins with 2 pieces; then only 1 is left."""
    arguments = ("action=search", "cluster.servers=2", "comm=ps", "partition=search", "partition.max=2")
    cwd = tmp_path_factory.mktemp("only_searched")
    return launch(*lm, *arguments, "partition.steps_per_trial=4", "tracking=off", cwd=cwd).expect_success()


def test_action_search_tells_the_choice_and_trains_nothing(only_searched: Run) -> None:
    summary = only_searched.summary
    assert (summary["status"], summary["action"], summary["steps"]) == ("finished", "search", 0)
    assert summary["partition_candidates"] == [2, 1]
    assert summary["partition_choice"] in (1, 2)
    assert summary["partition_theta0_ms"] is None  # two points do not determine a curve
    assert f"found: {summary['partition_choice']} partition" in only_searched.stderr
    assert partitions_in(only_searched.plan) == summary["partition_choice"]
    assert not only_searched.ckpt_dir.exists()
    assert (only_searched.run_dir / "plots" / "partition_search.png").exists()
    # The search's own settings are gone from the configuration: the user's number of steps is there.
    assert re.search(r"^train:\n  steps: 200$", (only_searched.run_dir / "config.yaml").read_text(), re.M)


def test_what_was_found_can_be_said_without_a_search(only_searched: Run, lm: tuple[str, ...], tmp_path: Path) -> None:
    told = re.search(r"^to use this number without a search: (.*)$", only_searched.stderr, re.M)
    assert told
    arguments = ("action=plan", "comm=ps", "cluster.servers=2", *told[1].split(), "tracking=off")
    planned = launch(*lm, *arguments, cwd=tmp_path).expect_success()
    placed = [{v["name"]: v["shards"] for v in plan["variables"]} for plan in (planned.plan, only_searched.plan)]
    assert placed[0] == placed[1]


def wait_for_trials(running: Running, number: int) -> None:
    """Waits until `number` trials are recorded."""
    path = running.run_dir / "search" / "choice.json"
    deadline = time.monotonic() + LAUNCH_SECS
    while not path.exists() or len(json.loads(path.read_text())["trials"]) < number:
        assert running.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_search_goes_on_with_its_trials_and_its_training(lm: tuple[str, ...], tmp_path: Path) -> None:
    """A worker dies in the second trial, and the run continues; then the whole run is interrupted, and continues in
    another launch."""
    arguments = (*lm, "comm=hybrid", "cluster.servers=2", "partition=search", "partition.max=64", "tracking=off")
    slow = ("partition.steps_per_trial=150", "train.steps=1000000", "ckpt.save_steps=20", "train.max_restarts=1")
    with started(*arguments, *slow, cwd=tmp_path) as running:
        wait_for_trials(running, 1)
        running.member("worker", 1).kill()
        wait_for_trials(running, 2)
        interrupt(running)
        run = running.wait()
        assert running.left() == []
    assert run.exit_status == 130
    summary = run.summary
    assert (summary["status"], summary["restarts"], summary["partition_choice"]) == ("interrupted", 1, None)
    assert "restart 1 of 1 from step" in run.stderr and "to continue:" in run.stderr
    tried = summary["partition_candidates"]
    assert len(set(tried)) == len(tried) >= 2
    trials = choice_of(run)["trials"]
    steps = summary["steps"] + 10
    again = launch(*arguments, *slow[:1], f"train.steps={steps}", cwd=tmp_path).expect_success()
    assert (
        f"continuing with the trials of an earlier run, in {run.run_dir}: {', '.join(map(str, tried))}" in again.stderr
    )
    assert again.summary["first_step"] > 0
    assert choice_of(again)["trials"][: len(trials)] == trials
    assert again.summary["partition_choice"] is None and "search: not finished" in again.stderr


def test_a_plan_tells_where_the_search_would_begin(lm: tuple[str, ...], tmp_path: Path) -> None:
    run = launch(*lm, *SEARCH, "action=plan", "partition.min=2", cwd=tmp_path).expect_success()
    run.expect_nothing_started()
    assert "partition=search starts with 2 and tries 2 to 4 shards" in run.plan["notes"]


def test_without_sparse_variables_there_is_nothing_to_search(tmp_path: Path) -> None:
    arguments = ("model=simple", "comm=ps", "partition=search", "tracking=off", "train.steps=1")
    run = launch(*arguments, "action=search", cwd=tmp_path / "alone")
    assert run.exit_status == 2
    assert "action=search (command line): no sparse variable is on a server" in run.stderr
    run.expect_nothing_started()
    run = launch(*arguments, cwd=tmp_path / "in train").expect_success()
    assert "partition=search has no effect: no sparse variable is on a server" in run.plan["notes"]
    assert "partition_choice" not in run.summary
