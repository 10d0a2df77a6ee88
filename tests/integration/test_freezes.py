"""Real runs in which a process freezes (SIGSTOP): noticed within `train.hang_timeout_secs`, and treated as a death."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import ENDLESS
from tests.integration.runs import LAUNCH_SECS, Broken, break_in, started

HANG_TIMEOUT_SECS = 8
# Ending all processes takes a few seconds more on a busy machine.
END_SECS = HANG_TIMEOUT_SECS + 15


def freeze(lm: tuple[str, ...], cwd: Path, role: str, index: int, *more: str, checkpoints: int = 0) -> Broken:
    """Runs until there are `checkpoints` checkpoints, then stops the process."""
    overrides = (*lm, *ENDLESS, f"train.hang_timeout_secs={HANG_TIMEOUT_SECS}", *more)
    with started(*overrides, cwd=cwd) as running:
        running.wait_for_checkpoints(checkpoints)
        return break_in(running, lambda: running.member(role, index).send_signal(signal.SIGSTOP))


@pytest.fixture(scope="module")
def frozen_chief(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Broken:
    """A recorded run whose chief was stopped after it had saved some steps."""
    folder = tmp_path_factory.mktemp("frozen_chief")
    return freeze(lm, folder, "worker", 0, "comm=hybrid", "ckpt.save_steps=10", checkpoints=1)


def failure_of(broken: Broken) -> dict[str, Any]:
    return json.loads((broken.run.run_dir / "failure.json").read_text())


def expect_frozen(broken: Broken, role: str, index: int) -> None:
    assert broken.secs < END_SECS
    assert broken.run.exit_status == 1
    assert broken.left == []
    assert broken.run.summary["status"] == "failed"
    assert re.search(
        rf"parallax_runner: {role} {index} on \S+: frozen: no sign of life for \d s "
        rf"\(train.hang_timeout_secs={HANG_TIMEOUT_SECS}\); the process is stopped",
        broken.run.stderr,
    ), broken.run.stderr
    first = failure_of(broken)["first"]
    assert (first["role"], first["index"]) == (role, index)
    # The process is declared dead within the time-out, counted from its last sign of life.
    silent_secs = int(re.search(r"for (\d+) s", first["reason"])[1])  # type: ignore[index]
    assert silent_secs < HANG_TIMEOUT_SECS


def test_a_frozen_chief_ends_the_run(frozen_chief: Broken) -> None:
    expect_frozen(frozen_chief, "worker", 0)


def test_what_the_others_waited_in(frozen_chief: Broken) -> None:
    others = {(one["role"], one["index"]): one for one in failure_of(frozen_chief)["others"]}
    assert set(others) == {("worker", 1), ("server", 0)}
    worker, server = others["worker", 1], others["server", 0]
    assert worker["doing"] == f"step {worker['step'] + 1}"
    assert 0 < worker["doing_secs"] < END_SECS
    assert re.fullmatch(r"session\.run in train/step_runner\.py:\d+ \w+", worker["where"])
    assert server["doing"] == "serving"
    assert f"worker 1 waited in {worker['doing']} (session.run)" in frozen_chief.run.stderr
    assert "server 0 was serving" in frozen_chief.run.stderr


def test_the_mlflow_run_has_failed(frozen_chief: Broken) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{frozen_chief.run.run_dir.parent / 'mlflow.db'}")
    assert client.get_run(frozen_chief.run.summary["mlflow_run_id"]).info.status == "FAILED"


def test_the_printed_command_resumes_and_finishes(frozen_chief: Broken) -> None:
    run, failure = frozen_chief.run, failure_of(frozen_chief)
    saved = int(Path(failure["ckpt_path"]).name.rpartition("-")[2])
    assert saved >= 10
    assert failure["resume_command"] in run.stderr
    assert failure["cwd"] == str(run.run_dir.parent)
    words = shlex.split(failure["resume_command"])
    assert words[:3] == ["python", "-m", "parallax_runner"]
    # The command runs as printed, except for the endless number of steps.
    assert "train.steps=1000000" in words
    words[words.index("train.steps=1000000")] = f"train.steps={saved + 3}"
    result = subprocess.run(
        [sys.executable, *words[1:]], cwd=failure["cwd"], capture_output=True, text=True, timeout=LAUNCH_SECS
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["first_step"], summary["steps"]) == ("finished", saved, saved + 3)
    assert not (run.run_dir / "failure.json").exists()


@pytest.mark.parametrize(
    ("role", "index", "comm"), [("worker", 1, ("comm=mpi",)), ("server", 0, ("comm=ps", "cluster.servers=2"))]
)
def test_a_frozen_worker_or_server_ends_the_run(
    lm: tuple[str, ...], tmp_path: Path, role: str, index: int, comm: tuple[str, ...]
) -> None:
    expect_frozen(freeze(lm, tmp_path, role, index, *comm, "tracking=off"), role, index)
