"""The ends of scripts that call parallel_run: an exception, an exit status, an early end, Ctrl-C."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.integration.scripted import SCRIPT, Done, run, start


def test_a_failing_worker_shows_its_traceback_once(tmp_path: Path) -> None:
    done = run(tmp_path, fails=1, config={"run_option": "PS"}, resources=None)
    assert done.status == 1
    assert done.stderr.count("Traceback") == 1 and "Traceback" not in done.stdout
    lines = [line.strip() for line in done.stderr.splitlines()]
    start = lines.index("Traceback (most recent call last):")
    assert f'File "{SCRIPT}", line ' in lines[start + 1]
    assert lines[start + 2 : start + 4] == [
        'raise RuntimeError("broken on purpose")',
        "RuntimeError: broken on purpose",
    ]
    assert "parallax_runner: worker 1" in done.stderr
    assert "Traceback" in (done.run_dir / "logs" / "worker_1.log").read_text()


def test_the_exit_status_of_a_script_is_the_runs(tmp_path: Path) -> None:
    assert run(tmp_path, exits=0).status == 7


@pytest.mark.parametrize("option", ["PS", "MPI"])
def test_a_worker_that_ends_early_is_told(tmp_path: Path, option: str) -> None:
    done = run(tmp_path, ends=[1, 2], resources=None, config={"run_option": option})
    assert done.status == 1
    assert "the script of worker 1 ended after step 2, and worker 0 is waiting for it in step 3" in done.stderr
    assert "Traceback" not in done.stderr and f"logs: {done.run_dir / 'logs'}" in done.stderr
    # The record is that of a failed run.
    summary, failure = (json.loads((done.run_dir / f"{name}.json").read_text()) for name in ("summary", "failure"))
    assert (summary["status"], failure["step"]) == ("failed", 2) and 1 <= summary["steps"] <= 2
    assert "worker 0 is waiting for it in step 3" in summary["error"] and summary["error"] == failure["reason"]


def test_ctrl_c_ends_all_workers_at_one_step_and_saves_it(tmp_path: Path) -> None:
    with start(tmp_path, steps=10**6, config={"run_option": "MPI"}) as process:
        assert process.stdout is not None
        while "[worker 0] environment" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert Done(tmp_path / "out", process.returncode, stdout, stderr).checkpoint()["global_step"] == summary["steps"]
