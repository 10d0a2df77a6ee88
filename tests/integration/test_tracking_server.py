"""A tracking server that is down, or stopped and started during a run: no number is lost, none doubled."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

from tests.integration.mlflow_server import MlflowServer
from tests.integration.runs import LAUNCH_SECS, Run, Running, break_in, interrupt, launch, started

SIMPLE = ("model=simple", "comm=local")
PASSWORD = "s3cret-w0rd"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A server that is stopped at the beginning and at the end of a test."""
    server = MlflowServer(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def unheard(server: MlflowServer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose server was never up; the environment has its address, with a password."""
    server.stop()
    cwd = tmp_path_factory.mktemp("unheard")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", with_password(server))
        return launch(*SIMPLE, "train.steps=50", "tracking.uri=null", cwd=cwd)


def with_password(server: MlflowServer) -> str:
    """Returns the server's address with a password, which this server does not require."""
    return server.uri.replace("http://", f"http://me:{PASSWORD}@")


def files_with_password(*folders: Path) -> list[Path]:
    """Returns all files below some folders that contain the password."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [path for path in files if PASSWORD.encode() in path.read_bytes()]


def sync(run_dir: Path, uri: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `action=sync` in the parent folder; `uri` is the environment's."""
    return subprocess.run(
        [sys.executable, "-m", "parallax_runner", "action=sync", f"run_dir={run_dir}"],
        cwd=run_dir.parent,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **({} if uri is None else {"MLFLOW_TRACKING_URI": uri}),
        },
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECS,
        check=False,
    )


def points_of_journal(run_dir: Path) -> dict[str, list[int]]:
    """Returns the steps by metric from the run's own journal."""
    steps = collections.defaultdict(list)
    for line in (run_dir / "journal.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for key in entry["metrics"] if entry["kind"] == "metrics" else ():
            steps[key].append(entry["step"])
    return dict(steps)


def recorded(server: MlflowServer, run_dir: Path) -> tuple[MlflowRun, dict[str, list[int]]]:
    """Returns the MLflow run of a run directory, and its steps by metric on the server."""
    client = MlflowClient(tracking_uri=server.uri)
    run = client.get_run(json.loads((run_dir / "mlflow_run.json").read_text())["run_id"])
    histories = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    return run, {key: sorted(metric.step for metric in history) for key, history in histories.items()}


def wait_for(what: Callable[[], object], running: Running) -> None:
    deadline = time.monotonic() + LAUNCH_SECS
    while not what():
        assert running.process.poll() is None, "the run has ended"
        assert time.monotonic() < deadline
        time.sleep(0.2)


def last_step(running: Running) -> int:
    return max((step for steps in points_of_journal(running.run_dir).values() for step in steps), default=0)


def test_a_server_that_restarts_during_a_run_gets_everything_once(server: MlflowServer, tmp_path: Path) -> None:
    server.start()
    overrides = (*SIMPLE, "train.steps=100000000", "train.log_every=500", f"tracking.uri={server.uri}")
    with started(*overrides, cwd=tmp_path) as running:
        running.wait_for_step()
        wait_for(lambda: (running.run_dir / "mlflow_run.json").exists(), running)
        wait_for(lambda: "train/loss" in recorded(server, running.run_dir)[1], running)
        server.stop()
        step_at_stop = last_step(running)
        # It continues to train, and the log says that the server is down.
        driver_log = running.run_dir / "logs" / "driver.log"
        wait_for(lambda: "unreachable" in driver_log.read_text(), running)
        wait_for(lambda: last_step(running) >= step_at_stop + 5000, running)
        step_at_restart = last_step(running)
        server.start()
        wait_for(lambda: recorded(server, running.run_dir)[1]["train/loss"][-1] > step_at_restart, running)
        run = break_in(running, lambda: interrupt(running)).run
    assert run.exit_status == 130
    stored, steps = recorded(server, run.run_dir)
    assert stored.info.status == "KILLED"
    assert steps == points_of_journal(run.run_dir)
    losses = steps["train/loss"]
    assert losses == [1, *range(500, losses[-1], 500), losses[-1]]
    assert len(stored.data.params) > 30
    assert "action=sync" not in run.stderr
    artifacts = {entry.path for entry in MlflowClient(tracking_uri=server.uri).list_artifacts(stored.info.run_id)}
    assert artifacts >= {"config.yaml", "plan.json", "summary.json", "logs"}
    server.stop()


def test_without_its_server_a_run_ends_well_and_names_the_remedy(unheard: Run) -> None:
    unheard.expect_success()
    assert unheard.stderr.count("MLflow is unreachable: tracking.uri=http://***@127.0.0.1") == 1
    assert "Training continues" in unheard.stderr
    assert unheard.stderr.count("entries of this run: Connection refused") == 1
    assert f"python -m parallax_runner action=sync run_dir={unheard.run_dir}" in unheard.stderr
    assert unheard.summary["status"] == "finished"
    assert unheard.summary["mlflow_run_id"] is None
    assert unheard.sidecar(50)["mlflow_run_id"] is None


def test_sync_sends_what_a_run_without_server_has_kept(unheard: Run, server: MlflowServer) -> None:
    uri = with_password(server)
    without = sync(unheard.run_dir)
    assert without.returncode == 1
    assert "needs a password: set MLFLOW_TRACKING_URI" in without.stderr
    refused = sync(unheard.run_dir, uri)
    assert refused.returncode == 1
    assert "entries were not sent, because MLflow is unreachable" in refused.stderr
    assert "Traceback" not in refused.stderr
    before = points_of_journal(unheard.run_dir)
    server.start()
    sent = sync(unheard.run_dir, uri)
    assert sent.returncode == 0, sent.stderr
    assert "entries sent" in sent.stdout
    stored, steps = recorded(server, unheard.run_dir)
    assert stored.info.status == "FINISHED"
    assert steps == before
    assert steps["train/loss"] == [1, 10, 20, 30, 40, 50]
    assert json.loads((unheard.run_dir / "summary.json").read_text())["mlflow_run_id"] == stored.info.run_id
    # A late report does not change the recorded times.
    lines = (unheard.run_dir / "journal.jsonl").read_text().splitlines()
    last_point_ms = max(json.loads(line).get("time_ms", 0) for line in lines)
    assert stored.info.start_time < stored.info.end_time <= last_point_ms
    client = MlflowClient(tracking_uri=server.uri)
    (model,) = client.search_logged_models([stored.info.experiment_id], f"source_run_id = '{stored.info.run_id}'")
    assert (model.name, str(model.status)) == ("step-50", "READY")
    assert {"train/loss": steps["train/loss"][-1]}.items() <= {one.key: one.step for one in model.metrics}.items()
    assert [output.model_id for output in stored.outputs.model_outputs] == [model.model_id]
    assert len(stored.inputs.dataset_inputs) == len({one.dataset_digest for one in model.metrics}) > 0
    assert "MLmodel" in {entry.path for entry in client.list_logged_model_artifacts(model.model_id)}
    assert {"checkpoints", "model"} <= {entry.path for entry in client.list_artifacts(stored.info.run_id)}
    again = sync(unheard.run_dir)
    assert again.returncode == 0
    assert "nothing to send" in again.stdout
    assert recorded(server, unheard.run_dir)[1] == before
    # The sync created no folder for a run that does not exist.
    assert {path.name for path in unheard.run_dir.parent.iterdir()} == {"out", "stdout.txt", "stderr.txt"}
    server.stop()
    assert files_with_password(unheard.run_dir.parent, server.folder) == []
    for said in (without, refused, sent, again):
        assert PASSWORD not in said.stdout + said.stderr


def test_sync_without_a_journal_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused = sync(tmp_path / "empty")
    assert refused.returncode == 2
    assert "no journal.jsonl" in refused.stderr
