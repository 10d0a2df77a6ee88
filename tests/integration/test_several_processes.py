"""One training stays one, although several processes run the same command or script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from parallax_runner.launch.mpirun.command import find_mpirun
from tests.free_port import pick_free_port
from tests.integration.scripted import ROOT, SCRIPT, STEPS, Done, expect
from tests.integration.test_fit import run
from tests.integration.test_frontdoors import Processes, processes

__all__ = ["processes"]
GUARDED = SCRIPT.with_name("train_guarded.py")


def deeds(folder: Path) -> list[str]:
    """Returns what the processes of a script have left, each without its process id."""
    return sorted(path.name.rpartition("-")[0] for path in folder.glob("*-*"))


def expect_no_process(folder: Path) -> None:
    """Checks that no process of the run in a folder is left."""
    left = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]
    assert left == []


def start_with_tf_config(processes: Processes, *argv: str) -> None:
    """Starts a program twice, as the two workers of one cluster."""
    workers = [f"127.0.0.1:{pick_free_port()}", f"127.0.0.1:{pick_free_port()}"]
    for index in (1, 0):
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        processes.start(f"process {index}", *argv, env={"TF_CONFIG": config, "PYTHONPATH": str(ROOT)})


def test_a_command_that_mpirun_starts_twice_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parallax_runner", "experiment=quick", "tracking=off", "hydra.run.dir=out"]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [find_mpirun(), "--oversubscribe", "-np", "2", *command],
        cwd=tmp_path,
        env={**os.environ, **as_root},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "OMPI_COMM_WORLD_SIZE=2: mpirun has started several processes" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_processes_with_tf_config_fit_together(processes: Processes, tmp_path: Path) -> None:
    """Only the process of rank 0 goes on after `fit`: not the process that stands by, and not the workers."""
    start_with_tf_config(processes, str(GUARDED), "guarded")
    assert set(processes.exit_statuses().values()) == {0}, processes.logs()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["workers"] == 2
    assert deeds(tmp_path) == ["after", "finally"]


def test_processes_with_tf_config_run_a_script_together(processes: Processes, tmp_path: Path) -> None:
    asked = {"steps": STEPS, "resources": None, "config": {"run_option": "MPI"}}
    start_with_tf_config(processes, str(SCRIPT), json.dumps(asked))
    assert set(processes.exit_statuses().values()) == {0}, processes.logs()
    said = (tmp_path / "process 0.log").read_text()
    expect(Done(tmp_path / "out", 0, said, ""))
    assert "[worker 1] worker 1 of 2, 1 replica(s)" in said


@pytest.mark.parametrize("data", ["arrays", "generator"])
def test_nothing_of_the_script_runs_in_workers_after_fit(data: str, tmp_path: Path) -> None:
    done = run(GUARDED, "guarded", data, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert deeds(tmp_path) == ["after", "finally"]


@pytest.mark.parametrize(
    ("where", "told", "status"),
    [
        ("thread", "this is the thread 'Thread-", 0),  # of a thread, Python reports only the error
        ("spawned", "this is the child process 'SpawnProcess-1'", 1),
    ],
)
def test_fit_elsewhere_cannot_run_the_script_again(where: str, told: str, status: int, tmp_path: Path) -> None:
    """The data comes from a Python generator, so workers would have to run the script. They are not started."""
    done = run(GUARDED, where, "generator", cwd=tmp_path)
    assert (done.returncode, done.stderr.count(told)) == (status, 1), done.stderr
    assert not list(tmp_path.glob("run/logs/worker_*"))


def test_fit_in_a_forked_process_fails_once(tmp_path: Path) -> None:
    """The child becomes the driver. Its workers, which run the script, fork such children too, which must not become
    drivers."""
    done = run(GUARDED, "forked", "generator", cwd=tmp_path)
    assert done.returncode == 1
    assert "exit status 1 without calling parallel_run or fit in its own process" in done.stderr
    assert "PARALLAX_CONTROL is set" in "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("*.log"))
    expect_no_process(tmp_path)
