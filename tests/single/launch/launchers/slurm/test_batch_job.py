"""The script of a job, and what is read of a job's end."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.environment import FromEnvironment
from parallax_runner.config.schema import ClusterConfig, RunConfig, SweepConfig, TrainConfig
from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers.predicted_memory import driver_mib, server_mib, worker_mib
from parallax_runner.launch.launchers.slurm import batch_job
from parallax_runner.plan.plan import Plan, Prediction, VariablePlan

TABLE = VariablePlan("table", (1 << 20, 256), "float32", 2**30, "sparse", "ps", (), ("accumulator",), None, "")
PLAN = Plan("hybrid", workers=4, servers=2, fingerprint="", variables=(TABLE,), notes=())
COMMAND = "python -m parallax_runner cluster=slurm 'data.path=a b' hydra.run.dir=runs/one"


def config(**cluster: Any) -> RunConfig:
    given = {"launcher": "slurm", "nodes": 2, "tasks_per_node": 2, "threads_per_worker": 3, **cluster}
    ckpt = dataclasses.replace(RunConfig().ckpt, enabled=True)
    return RunConfig(action="train", cluster=ClusterConfig(**given), train=TrainConfig(steps=1000), ckpt=ckpt)


def test_the_script_names_the_variables_that_it_needs(tmp_path: Path) -> None:
    found = {("model", "a"): FromEnvironment("${oc.env:PW}", "hunter2", ("PW", "ODD\nrm -rf x"))}
    reads = dataclasses.replace(config(), from_environment=found)
    text = batch_job.script(reads, PLAN, tmp_path / "one", COMMAND)
    assert "# This job reads the configuration's values from the environment: ODD?rm??rf?x, PW.\n" in text
    assert "hunter2" not in text and "rm -rf" not in text
    assert "reads the configuration" not in batch_job.script(config(), PLAN, tmp_path / "one", COMMAND)


def options(text: str) -> dict[str, str]:
    words = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def test_the_script_asks_for_what_the_plan_needs(tmp_path: Path) -> None:
    text = batch_job.script(config(), PLAN, tmp_path / "one", COMMAND)
    asked = options(text)
    assert (asked["nodes"], asked["ntasks-per-node"], asked["cpus-per-task"]) == ("2", "2", "3")
    # Two workers, a server and the driver.
    assert asked["mem"] == f"{driver_mib(PLAN) + 2 * worker_mib(PLAN) + server_mib(PLAN)}M"
    assert asked["chdir"] == os.getcwd() and asked["output"] == f"{tmp_path}/one/slurm-%j.log"
    assert "time" not in asked, "nothing is predicted"
    command = text.splitlines()[-1]
    assert command.startswith(f"exec {sys.executable} -m parallax_runner cluster=slurm 'data.path=a b' ")
    assert command.endswith("${SLURM_RESTART_COUNT:+ckpt.resume=auto}")


@pytest.mark.parametrize(
    ("cluster", "nodes"),
    [
        ({"min_workers": 1}, "1-2"),
        ({"min_workers": 3}, "2"),
        ({"min_workers": 2, "max_workers": 8}, "1-4"),
        ({"max_workers": 5}, "2-3"),
    ],
)
def test_a_job_that_goes_on_with_other_nodes_asks_for_them(tmp_path: Path, cluster: dict[str, Any], nodes: str) -> None:
    elastic = size_cluster(config(resource_info=None, **cluster))
    text = batch_job.script(elastic, PLAN, tmp_path / "one", COMMAND)
    asked = options(text)
    assert (asked["nodes"], asked["mincpus"], asked["cpus-per-task"]) == (nodes, "6", "3")
    assert "ntasks-per-node" not in asked, "Slurm would allocate the smallest number of nodes"
    assert "#SBATCH --no-kill" in text and "#SBATCH --requeue" in text
    assert "--no-kill" not in batch_job.script(config(), PLAN, tmp_path / "one", COMMAND)


def test_the_script_is_one_that_bash_reads(tmp_path: Path) -> None:
    path = batch_job.write_script(config(), PLAN, tmp_path, COMMAND)
    shown = path.read_text().replace(f"exec {sys.executable}", "exec printf '%s\\n'")
    first = subprocess.run(["bash"], input=shown, text=True, capture_output=True, check=True).stdout.splitlines()
    again = subprocess.run(
        ["bash"], input=shown, text=True, capture_output=True, env={**os.environ, "SLURM_RESTART_COUNT": "1"}
    ).stdout.splitlines()
    assert first == ["-m", "parallax_runner", "cluster=slurm", "data.path=a b", "hydra.run.dir=runs/one"]
    assert again == [*first, "ckpt.resume=auto"]


def test_the_time_limit_is_the_user_s_or_twice_what_is_predicted(tmp_path: Path) -> None:
    predicted = dataclasses.replace(PLAN, predicted=Prediction(step_ms=600.0))
    assert options(batch_job.script(config(), predicted, tmp_path, COMMAND))["time"] == "30"
    assert options(batch_job.script(config(time_limit="2:00:00"), predicted, tmp_path, COMMAND))["time"] == "2:00:00"


def test_the_user_s_options_come_last(tmp_path: Path) -> None:
    text = batch_job.script(config(sbatch_options="--mem=1G --account='my lab'"), PLAN, tmp_path, COMMAND)
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert lines[-2:] == ["#SBATCH --mem=1G", '#SBATCH "--account=my lab"']


def test_who_belongs_into_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert batch_job.is_to_submit(config())
    assert not batch_job.is_to_submit(dataclasses.replace(config(), action="plan"))
    assert not batch_job.is_to_submit(config(launcher="local"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert not batch_job.is_to_submit(config())


def test_scripts_and_jobs_of_sweeps_are_not_submitted() -> None:
    of_sweep = dataclasses.replace(config(), sweep=SweepConfig(fail_fast=False, dir="multirun/1"))
    for given, command in ((config(), None), (of_sweep, COMMAND)):
        with pytest.raises(LaunchError, match="a script or a job of a sweep is not submitted"):
            batch_job.Sbatch().expect_command(given, command)
    assert batch_job.Sbatch().expect_command(config(), COMMAND) == COMMAND


@pytest.mark.parametrize(
    ("state", "exit_code", "status"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "2:0", 2),
        ("CANCELLED", "0:15", 143),
        ("NODE_FAIL", "0:0", 1),
        ("TIMEOUT", "0:0", 1),
    ],
)
def test_status_of_a_job(state: str, exit_code: str, status: int) -> None:
    assert batch_job.status_of(state, exit_code) == status


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", "\x00", "\udcff"])
@pytest.mark.parametrize("where", ["run_dir", "working folder", "time_limit", "option", "options"])
def test_nothing_with_a_line_break_is_written(
    where: str, character: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows a line break would be a command of the job."""
    odd = f"x'{character}touch pwned #"
    run_dir, given = tmp_path / "one", {}
    if where == "run_dir":
        run_dir = tmp_path / odd
    elif where == "working folder":
        monkeypatch.setattr(os, "getcwd", lambda: f"/{odd}")
    elif where == "time_limit":
        given = {"time_limit": odd}
    elif where == "option":
        given = {"sbatch_options": ["--mem=1G", f"--comment={odd}"]}
    else:
        given = {"sbatch_options": f'--mem=1G "--comment={odd}"'}
    with pytest.raises(LaunchError, match=r"job.sbatch cannot contain .*: expected a value .*without line breaks"):
        batch_job.script(config(**given), PLAN, run_dir, COMMAND)


def test_what_sbatch_reads_is_quoted_for_it(tmp_path: Path) -> None:
    run_dir = tmp_path / 'a "b" %j $(e) #f'
    text = batch_job.script(config(sbatch_options=["--comment=c\\d 'e'"]), PLAN, run_dir, COMMAND)
    asked = options(text)
    assert asked["job-name"] == r'"a \"b\" %j $(e) #f"'
    assert asked["output"] == rf'"{tmp_path}/a \"b\" %%j $(e) #f/slurm-%j.log"'
    assert "#SBATCH \"--comment=c\\\\d 'e'\"" in text
    with pytest.raises(LaunchError, match=r"cluster=slurm, run_dir=.*: Slurm drops backslashes"):
        batch_job.script(config(), PLAN, tmp_path / "a\\b", COMMAND)


SHOWN = """JobId=7 JobName=x JobState=COMPLETED ExitCode=0:0
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0
   Command=/w/x JobState=COMPLETED ExitCode=0:0/job.sbatch
   WorkDir=/w/x JobState=COMPLETED ExitCode=0:0
   StdOut=/w/x Requeue=1 ExitCode=0:0/slurm-7.log
"""


def test_a_path_is_not_the_state_of_the_job() -> None:
    assert batch_job.standing_in(SHOWN) == ("FAILED", 3)
    with pytest.raises(LaunchError, match="no state of the job: ''"):
        batch_job.standing_in("")
