"""Whatever is typed, what cannot be run is refused in one message, with exit status 2 and without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.single.config.command_lines import SHOWING, command_line
from tests.single.config.in_process import answer_of_hydra

COUNT = 500
PER_TEST = 50
MOST_LINES = 8  # of one message: what Python says of some values has several
PROCESSES = 20


def fault_of(done: subprocess.CompletedProcess[str]) -> str | None:
    """What is wrong with how a command line was answered."""
    if "Traceback" in done.stderr or "Traceback" in done.stdout:
        return "a traceback"
    if done.returncode == 0:
        return None
    if done.returncode != 2:
        return f"exit status {done.returncode}"
    told = done.stderr.strip().splitlines()
    if not told or not any(line.startswith("parallax_runner: ") for line in told):
        return "no message"
    return f"{len(told)} lines" if len(told) > MOST_LINES else None


@pytest.fixture(autouse=True)
def _folders_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg_cache_home"))


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_generated_command_lines_are_run_or_refused(first: int, tmp_path: Path) -> None:
    faults = {}
    statuses = set()
    for seed in range(first, first + PER_TEST):
        done = answer_of_hydra(*command_line(seed), cwd=tmp_path)
        statuses.add(done.returncode)
        fault = fault_of(done)
        if fault is not None:
            faults[seed] = (fault, command_line(seed), done.stderr[-2000:])
    assert faults == {}
    assert 2 in statuses, "some of them are wrong"


@pytest.mark.parametrize("flag", SHOWING)
def test_generated_command_lines_that_only_show(flag: str, tmp_path: Path) -> None:
    """Hydra answers these itself, so each is a process."""
    faults = {}
    for seed in range(1000, 1000 + PROCESSES // 2):
        words = [flag, *command_line(seed)]
        command = [sys.executable, "-m", "parallax_runner", *words]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        fault = fault_of(done)
        if fault is not None:
            faults[seed] = (fault, words, done.stderr[-2000:])
    assert faults == {}


def test_hydra_runs_what_is_right(tmp_path: Path) -> None:
    """Otherwise only the project's own checks would be tried."""
    assert answer_of_hydra("model=simple", "hydra.output_subdir=.hydra", cwd=tmp_path).returncode == 0
    assert list(tmp_path.glob("outputs/*/*/.hydra/overrides.yaml"))
    wrong = ("hydra/job_logging=default", "hydra.job_logging.version=7")
    failed = answer_of_hydra("model=simple", *wrong, cwd=tmp_path)
    assert fault_of(failed) is None and failed.returncode == 2
    assert "Hydra fails with these settings: ValueError: Unsupported version: 7" in failed.stderr


def test_a_fault_is_found() -> None:
    """Otherwise the tests above could not fail."""
    done = subprocess.CompletedProcess([], 1, "", "Traceback (most recent call last):\n")
    assert fault_of(done) == "a traceback"
    assert fault_of(subprocess.CompletedProcess([], 1, "", "parallax_runner: x\n")) == "exit status 1"
    assert fault_of(subprocess.CompletedProcess([], 2, "", "x\n")) == "no message"
    assert fault_of(subprocess.CompletedProcess([], 2, "", "parallax_runner: x\n" * 9)) == "9 lines"
    assert fault_of(subprocess.CompletedProcess([], 2, "", "parallax_runner: x\n")) is None
