"""A driver that is killed: `action=sync` reports it to MLflow, and the run continues as the same MLflow run."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

from tests.integration.runs import LAUNCH_SECS, Run, launch, started
from tests.integration.test_tracking import SUMMARY_FIELDS

SIMPLE = ("model=simple", "comm=local", "train.log_every=100")


@dataclass(frozen=True)
class Killed:
    """A run whose driver was killed, and its state at that moment."""

    run_dir: Path
    status: str
    had_summary: bool
    last_step: int

    @property
    def client(self) -> MlflowClient:
        """The store's client."""
        return MlflowClient(tracking_uri=f"sqlite:///{self.run_dir.parent / 'mlflow.db'}")

    @property
    def runs(self) -> list[MlflowRun]:
        """Returns all runs of the store, oldest first."""
        experiment = self.client.get_experiment_by_name("parallax_runner")
        return self.client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])


def journal(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "journal.jsonl").read_text().splitlines()]


def losses(killed: Killed, run_id: str) -> list[int]:
    return [metric.step for metric in killed.client.get_metric_history(run_id, "train/loss")]


def knows_its_run(sidecar: Path) -> bool:
    try:
        return json.loads(sidecar.read_text())["mlflow_run_id"] is not None
    except FileNotFoundError:  # an old checkpoint that was deleted meanwhile
        return False


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    cwd = tmp_path_factory.mktemp("killed_driver")
    with started(*SIMPLE, "train.steps=100000000", "ckpt.save_steps=1000", cwd=cwd) as running:
        running.wait_for_step()
        # A checkpoint that knows the MLflow run, and then some steps that no checkpoint has.
        while not any(knows_its_run(path) for path in running.run_dir.glob("ckpt/*-*.json")):
            assert running.process.poll() is None
            time.sleep(0.01)
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        running.seconds_until_none_left(LAUNCH_SECS)
    steps = [entry["step"] for entry in journal(running.run_dir) if entry["kind"] == "metrics"]
    killed = Killed(running.run_dir, "", (running.run_dir / "summary.json").exists(), max(steps))
    (run,) = killed.runs
    return Killed(killed.run_dir, run.info.status, killed.had_summary, killed.last_step)


@pytest.fixture(scope="module")
def next_run(killed: Killed) -> Run:
    """Another run in the same folder, after the kill."""
    return launch(*SIMPLE, "train.steps=100", cwd=killed.run_dir.parent, name="next").expect_success()


@pytest.fixture(scope="module")
def synced(killed: Killed, next_run: Run) -> None:
    """The killed run is sent. Before, the other run has sent its own journal alone."""
    assert [run.info.status for run in killed.runs] == ["RUNNING", "FINISHED"]
    done = subprocess.run(
        [sys.executable, "-m", "parallax_runner", "action=sync", f"run_dir={killed.run_dir}"],
        cwd=killed.run_dir.parent,
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECS,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def resumed(killed: Killed, synced: None) -> Run:
    """The killed run, resumed and run to its end."""
    overrides = (*SIMPLE, f"train.steps={killed.last_step + 1000}", "ckpt.save_steps=1000")
    return launch(*overrides, cwd=killed.run_dir.parent).expect_success()


def test_the_killed_driver_could_say_nothing_itself(killed: Killed) -> None:
    assert killed.status == "RUNNING"
    assert not killed.had_summary


def test_sync_says_that_it_was_killed(killed: Killed, synced: None) -> None:
    first, second = killed.runs
    assert (first.info.status, second.info.status) == ("KILLED", "FINISHED")
    assert "driver was killed" in first.data.tags["error"]
    # Every point journalled before the kill is there.
    expected = [entry["step"] for entry in journal(killed.run_dir) if "train/loss" in entry.get("metrics", {})]
    assert expected
    assert losses(killed, first.info.run_id) == expected
    assert {"summary.json", "config.yaml", "plan.json", "logs"} <= {
        entry.path for entry in killed.client.list_artifacts(first.info.run_id)
    }


def test_its_summary_says_so_too(killed: Killed, synced: None) -> None:
    artifact = killed.client.download_artifacts(killed.runs[0].info.run_id, "summary.json", str(killed.run_dir.parent))
    summary = json.loads(Path(artifact).read_text())
    assert summary["status"] == "interrupted"
    assert "driver was killed" in summary["error"]
    assert summary["comm"] == "local"
    assert summary["steps"] == killed.last_step
    assert set(summary) >= SUMMARY_FIELDS


def test_resumed_in_its_folder_it_is_the_same_mlflow_run(killed: Killed, resumed: Run) -> None:
    first, second = killed.runs
    assert first.info.run_id == resumed.summary["mlflow_run_id"]
    assert first.info.status == "FINISHED"
    steps = losses(killed, first.info.run_id)
    assert all(before < after for before, after in itertools.pairwise(steps))
    assert steps[-1] == killed.last_step + 1000
    assert killed.last_step in steps
    changed = json.loads(first.data.tags["parallax.changed_params"])
    assert changed["train.steps"] == str(killed.last_step + 1000)
    assert "model.ckpt-" in changed["ckpt.resume"]
    assert second.info.run_id == json.loads((killed.run_dir.parent / "next" / "mlflow_run.json").read_text())["run_id"]


def test_a_run_from_a_finished_one_is_another_that_names_it(killed: Killed, resumed: Run) -> None:
    overrides = (*SIMPLE, f"train.steps={killed.last_step + 1100}", f"ckpt.resume={resumed.run_dir}")
    third = launch(*overrides, cwd=killed.run_dir.parent, name="third").expect_success()
    run = killed.client.get_run(third.summary["mlflow_run_id"])
    assert run.data.tags["parallax.resumed_from"] == resumed.summary["mlflow_run_id"]
    assert losses(killed, run.info.run_id)[-1] == killed.last_step + 1100
    # None if such a short run has trained before MLflow answered, but never the run that it resumed from.
    assert third.sidecar(killed.last_step + 1100)["mlflow_run_id"] in (run.info.run_id, None)
    assert len(killed.runs) == 3
