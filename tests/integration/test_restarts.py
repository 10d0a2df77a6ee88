"""Real runs that restart by themselves, or by the command that they print; and signals at any time."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.integration.conftest import ENDLESS
from tests.integration.runs import LAUNCH_SECS, Run, Running, launch, started
from tests.integration.test_checkpoints import variables

KILLS = 20
KILLED_RUN = (
    "model=simple",
    "comm=local",
    "ckpt.save_steps=1",
    "train.log_every=1",
    "train.steps=1000",
    "tracking=off",
)
# Ten seconds of grace, one to end, and at most sixty for an MLflow that is creating its tables.
END_SECS = 100


def wait_until(condition: Callable[[], bool], running: Running) -> None:
    deadline = time.monotonic() + LAUNCH_SECS
    while not condition():
        assert running.process.poll() is None, "it has ended"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def said(running: Running) -> str:
    """Returns the driver's terminal output."""
    return (running.run_dir.parent / "stderr.txt").read_text()


def log_of(running: Running) -> str:
    path = running.run_dir / "logs" / "driver.log"
    return path.read_text() if path.exists() else ""


# --- Twenty kills at random moments -------------------------------------------------------------------------------


def next_worker(running: Running, killed: set[int]) -> psutil.Process:
    """Returns the worker of the present attempt, as soon as it is there."""
    driver = psutil.Process(running.process.pid)
    found: list[psutil.Process] = []

    def is_worker(child: psutil.Process) -> bool:
        # For a moment the driver has other children, such as git.
        with contextlib.suppress(psutil.Error):
            return child.pid not in killed and "parallax_runner.worker" in child.cmdline()
        return False

    def is_there() -> bool:
        found[:] = filter(is_worker, driver.children())
        return bool(found)

    wait_until(is_there, running)
    return found[0]


def has_saved_since(running: Running, secs: float) -> bool:
    times = []
    for path in (running.run_dir / "ckpt").glob("*.json"):
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:  # an old checkpoint that was deleted meanwhile
            continue
    return max(times, default=0.0) > secs


def kill_often(running: Running) -> None:
    """Kills one worker after another: some while they start, most in the middle of steps, each of which saves."""
    draw = random.Random(1)
    killed: set[int] = set()
    for number in range(KILLS):
        worker = next_worker(running, killed)
        since = time.time()
        if number % 3 == 0:
            time.sleep(draw.uniform(0.0, 3.5))
        else:
            wait_until(lambda since=since: has_saved_since(running, since), running)
            time.sleep(draw.uniform(0.0, 0.5))
        worker.kill()
        killed.add(worker.pid)


@pytest.mark.timeout(900)
def test_a_run_that_is_killed_twenty_times_ends_as_one_that_never_was(tmp_path: Path) -> None:
    straight = launch(*KILLED_RUN, cwd=tmp_path / "straight").expect_success()
    with started(*KILLED_RUN, "train.max_restarts=1000", cwd=tmp_path / "killed") as running:
        kill_often(running)
        killed = running.wait(400).expect_success()
    assert killed.summary["restarts"] == KILLS
    ends = r"killed by signal 9 \(SIGKILL\)"
    assert len(re.findall(rf"^worker 0.*{ends}; restart \d+ of 1000", killed.stderr, re.M)) == KILLS
    assert (killed.summary["first_step"], killed.summary["steps"]) == (0, 1000)
    assert killed.losses() == straight.losses()
    assert set(killed.losses()) == set(range(1, 1001))
    for key in ("loss_first", "loss_last", "validation_loss"):
        assert killed.summary[key] == straight.summary[key]
    ours, theirs = variables(killed.ckpt_dir), variables(straight.ckpt_dir)
    assert ours.keys() == theirs.keys() == {"w", "b", "global_step"}
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


# --- One restart, then a failure, then the printed command --------------------------------------------------------


def test_a_restart_and_then_the_printed_command(lm: tuple[str, ...], tmp_path: Path) -> None:
    overrides = (*lm, "comm=hybrid", "train.steps=2500", "train.log_every=10", "ckpt.save_steps=10", "tracking=off")
    with started(*overrides, "train.max_restarts=1", cwd=tmp_path, name="a run") as running:
        wait_until(lambda: has_saved_since(running, 0.0), running)
        running.member("worker", 1).kill()
        wait_until(lambda: "restart 1 of 1" in said(running), running)
        since = time.time()
        wait_until(lambda: has_saved_since(running, since), running)
        running.member("server", 0).kill()
        run = running.wait()
        assert running.left() == []
    again = re.search(
        r"^worker 1 on \S+: killed by signal 9 \(SIGKILL\); restart 1 of 1 from step (\d+)$", run.stderr, re.M
    )
    assert again is not None, run.stderr
    assert int(again[1]) >= 10
    failure = json.loads((run.run_dir / "failure.json").read_text())
    assert (run.exit_status, run.summary["restarts"], failure["restarts"]) == (1, 1, 1)
    assert (failure["first"]["role"], failure["first"]["index"]) == ("server", 0)
    assert failure["first"]["exit_status"] == -9
    assert failure["step"] > int(again[1])
    assert run.summary["ckpt_path"] == failure["ckpt_path"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = failure["resume_command"]
    assert f"    {command}\n" in run.stderr
    saved = int(failure["ckpt_path"].rpartition("-")[2])
    assert command.count("train.steps=2500") == 1
    result = subprocess.run(
        ["sh", "-c", command.replace("train.steps=2500", f"train.steps={saved + 20}")],
        cwd=failure["cwd"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECS,
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["first_step"], summary["steps"]) == ("finished", saved, saved + 20)
    assert summary["restarts"] == 0


def test_what_would_come_again_is_not_tried_again(tmp_path: Path) -> None:
    overrides = ("model=simple", "comm=mpi", "optimizer.learning_rate=1e30", "train.max_restarts=3", "tracking=off")
    run = launch(*overrides, cwd=tmp_path)
    assert run.exit_status == 1
    assert run.summary["restarts"] == 0
    assert "train.on_nan" in run.summary["error"]
    assert json.loads((run.run_dir / "failure.json").read_text())["ckpt_path"] is None


# --- Signals at any time ------------------------------------------------------------------------------------------


def expect_interrupted(running: Running, number: int) -> Run:
    running.process.send_signal(number)
    run = running.wait(END_SECS)
    assert run.exit_status == 128 + number, run.stderr
    assert "Traceback" not in run.stderr
    assert running.left() == []
    assert run.summary["status"] == "interrupted"
    assert "python -m parallax_runner" in run.stderr
    return run


def test_sigterm_while_planning(tmp_path: Path) -> None:
    with started("model=simple", "comm=mpi", "tracking=off", cwd=tmp_path) as running:
        wait_until(lambda: (running.run_dir / "logs" / "driver.log").exists(), running)
        time.sleep(0.5)
        assert not (running.run_dir / "plan.json").exists()
        run = expect_interrupted(running, signal.SIGTERM)
    run.expect_nothing_started()


def test_sigterm_while_workers_start(tmp_path: Path) -> None:
    import mlflow

    with started("model=simple", *ENDLESS, "comm=mpi", cwd=tmp_path) as running:
        wait_until(lambda: "started pid" in log_of(running), running)
        run = expect_interrupted(running, signal.SIGTERM)
    status = (
        mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").get_run(run.summary["mlflow_run_id"]).info.status
    )
    assert status == "KILLED"


def test_ctrl_c_after_a_restart_keeps_what_was_saved(tmp_path: Path) -> None:
    overrides = ("model=simple", *ENDLESS, "comm=local", "tracking=off", "ckpt.save_steps=5", "train.max_restarts=3")
    with started(*overrides, cwd=tmp_path) as running:
        wait_until(lambda: has_saved_since(running, 0.0), running)
        next_worker(running, set()).kill()
        wait_until(lambda: "restart 1 of 3" in said(running), running)
        run = expect_interrupted(running, signal.SIGINT)
    assert Path(f"{run.summary['ckpt_path']}.index").is_file()
    assert run.summary["restarts"] == 1


def test_ctrl_c_while_validating(tmp_path: Path) -> None:
    overrides = ("model=simple", "comm=local", "tracking=off", "train.steps=20", "data.validation_examples=3000000")
    with started(*overrides, cwd=tmp_path) as running:
        wait_until(lambda: "step 20/20" in said(running), running)
        time.sleep(0.5)
        run = expect_interrupted(running, signal.SIGINT)
    assert run.summary["ckpt_path"] == str(run.ckpt_dir / "model.ckpt-20")
