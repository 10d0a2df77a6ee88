"""Runs on a real Slurm of two nodes (tests/integration/slurm_cluster.py)."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.checkpoints.checkpoint_files import list_checkpoints, step_of
from tests.integration.runs import LAUNCH_SECS, Run, launch
from tests.integration.scripted import ROOT, SCRIPT
from tests.integration.slurm_cluster import Slurm, lacks, start_now, wait
from tests.integration.test_elastic import STEP_EXAMPLES, STEPS, arguments, expect_equal_to

MISSING = lacks()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

SIMPLE = ("model=simple", "data=linear", "optimizer=gradient_descent", "comm=ps", "tracking=off")
TWO_NODES = ("cluster=slurm", "cluster.nodes=2", "cluster.tasks_per_node=1")
ENDLESS = ("train.steps=100000000", "ckpt.save_secs=100000")


def submit(*arguments: str, cwd: Path) -> tuple[Run, str]:
    """Returns a run that is submitted to Slurm, and its job's id."""
    run = launch(*TWO_NODES, *SIMPLE, *arguments, cwd=cwd, is_forked=False).expect_success()
    found = re.search(r"submitted as job (\d+); log: (\S+);", run.stderr)
    assert found and found[2] == str(run.run_dir / f"slurm-{found[1]}.log"), run.stderr
    return run, found[1]


def log_of(run: Run, job: str) -> str:
    path = run.run_dir / f"slurm-{job}.log"
    return path.read_text() if path.exists() else ""


def wait_for_step(run: Run, job: str, start: int = 0) -> None:
    """Waits for a progress line in the job's output from position `start` on."""
    wait(lambda: "\nstep " in log_of(run, job)[start:], lambda: log_of(run, job))


def saved(run: Run) -> list[int]:
    return [step_of(prefix) for prefix in list_checkpoints(run.ckpt_dir)]


def test_a_run_is_submitted_trains_on_both_nodes_and_is_followed_to_its_end(slurm: Slurm, tmp_path: Path) -> None:
    run = launch(*TWO_NODES, *SIMPLE, "train.steps=4", "cluster.follow=true", cwd=tmp_path, is_forked=False)
    assert run.exit_status == 0, run.stderr
    assert (run.summary["steps"], run.summary["workers"], run.summary["servers"]) == (4, 2, 2)
    assert "finished: 4 steps" in run.stderr and ": completed" in run.stderr
    driver = (run.run_dir / "logs" / "driver.log").read_text()
    assert "--host n1:1,n2:1" in driver and "--nodelist=n2" in driver and "ssh" not in driver
    assert "#SBATCH --nodes=2" in (run.run_dir / "job.sbatch").read_text()


@pytest.mark.parametrize(("comm", "servers"), [("hybrid", 2), ("sharded", 0)])
def test_quick_trains_by_collectives_over_both_nodes(slurm: Slurm, tmp_path: Path, comm: str, servers: int) -> None:
    quick = ("experiment=quick", "tracking=off", "train.steps=4", f"comm={comm}", "cluster.follow=true")
    run = launch(*TWO_NODES, *quick, cwd=tmp_path, is_forked=False).expect_success()
    assert (run.summary["steps"], run.summary["workers"], run.summary["servers"]) == (4, 2, servers)
    assert "--host n1:1,n2:1" in (run.run_dir / "logs" / "driver.log").read_text()
    assert any("exchanged by the native exchanges" in note for note in run.plan["notes"])


def test_horovod_trains_over_both_nodes(slurm: Slurm, tmp_path: Path) -> None:
    quick = ("experiment=quick", "tracking=off", "train.steps=4", "comm=sharded", "cluster.follow=true")
    run = launch(*TWO_NODES, *quick, "comm.backend=horovod", cwd=tmp_path, is_forked=False).expect_success()
    assert (run.summary["steps"], run.summary["workers"]) == (4, 2)
    assert any("exchanged by Horovod" in note for note in run.plan["notes"])


def test_a_job_s_failure_is_the_status_of_who_follows_it(slurm: Slurm, tmp_path: Path) -> None:
    """In a folder whose name could be taken for the state, and has characters that sbatch reads as others."""
    cwd = tmp_path / "x JobState=COMPLETED ExitCode=0:0 \"a\" 'b' %j $(touch e)"
    cwd.mkdir()
    diverges = ("optimizer.learning_rate=1e30", "train.steps=50", "cluster.follow=true")
    run = launch(*TWO_NODES, *SIMPLE, *diverges, cwd=cwd, is_forked=False)
    assert (run.exit_status, run.summary["status"]) == (1, "failed")
    assert ": failed" in run.stderr
    (log,) = run.run_dir.glob("slurm-*.log")
    assert "loss" in log.read_text()
    assert not list(tmp_path.rglob("e"))


def test_what_is_not_to_be_submitted_is_only_written(slurm: Slurm, tmp_path: Path) -> None:
    run = launch(*TWO_NODES, *SIMPLE, "cluster.submit=false", cwd=tmp_path, is_forked=False).expect_success()
    assert "written but not submitted: " in run.stderr
    run.expect_nothing_started()
    assert slurm.command("sbatch", "--test-only", str(run.run_dir / "job.sbatch")) == ""


@pytest.mark.parametrize("starter", ["srun --mpi=none --label", "salloc"])
def test_a_run_in_an_allocation_has_one_driver(slurm: Slurm, tmp_path: Path, starter: str) -> None:
    """Under srun one of two tasks is the driver; under salloc it runs on a machine outside the allocation."""
    run_dir = tmp_path / "out"
    argv = [*starter.split(), "-N2", "--ntasks-per-node=1", sys.executable, "-m", "parallax_runner", "cluster=slurm"]
    argv += [*SIMPLE, "train.steps=4", f"hydra.run.dir={run_dir}"]
    slurm.command(*argv, cwd=tmp_path, timeout_secs=LAUNCH_SECS)
    run = Run(run_dir, 0, "", "", 0.0)
    assert (run.summary["status"], run.summary["workers"]) == ("finished", 2)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}, "another task has made its own folder"


BY_PARALLEL_RUN = {"resources": None, "steps": 2, "config": {"run_option": "PS"}, "overrides": ["cluster=slurm"]}
BY_FIT = {
    **{"epochs": [1], "comm": "ps", "workers": None, "left": "left"},
    "overrides": ["cluster=slurm", "hydra.run.dir=out"],
}


@pytest.mark.parametrize(("script", "asked"), [("train.py", BY_PARALLEL_RUN), ("train_keras.py", BY_FIT)])
def test_a_run_in_an_allocation_by_a_script_has_one_driver(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, asked: dict[str, Any]
) -> None:
    monkeypatch.setitem(slurm.environ, "PYTHONPATH", str(ROOT))
    argv = ["srun", "--mpi=none", "-N2", "--ntasks-per-node=1", sys.executable, str(SCRIPT.with_name(script))]
    slurm.command(*argv, json.dumps(asked), cwd=tmp_path, timeout_secs=LAUNCH_SECS)
    run = Run(tmp_path / "out", 0, "", "", 0.0)
    assert (run.summary["status"], run.summary["workers"]) == ("finished", 2)
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "left"}, "another task has made its own folder"


SCRIPT_WITHOUT_ENVIRONMENT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 --export=NONE
export PATH={path} SLURM_CONF={conf} PYTHONPATH={root} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export SRUN_CPUS_PER_TASK=1
exec {python} -m parallax_runner cluster=slurm {settings} hydra.run.dir={run_dir}
"""


def test_a_job_without_an_environment_and_with_the_variables_of_a_site(slurm: Slurm, tmp_path: Path) -> None:
    """`--export=NONE` and SRUN_CPUS_PER_TASK must not reach the steps of mpirun's daemons and of the servers."""
    text = SCRIPT_WITHOUT_ENVIRONMENT.format(
        path=slurm.environ["PATH"],
        conf=slurm.environ["SLURM_CONF"],
        root=ROOT,
        python=sys.executable,
        settings=" ".join([*SIMPLE, "train.steps=4"]),
        run_dir=tmp_path / "out",
    )
    (tmp_path / "own.sbatch").write_text(text)
    slurm.command("sbatch", "--wait", "own.sbatch", cwd=tmp_path, timeout_secs=LAUNCH_SECS)
    run = Run(tmp_path / "out", 0, "", "", 0.0)
    assert (run.summary["status"], run.summary["workers"], run.summary["servers"]) == ("finished", 2, 2)


def test_a_driver_in_a_step_on_some_nodes_of_its_job_is_refused(slurm: Slurm, tmp_path: Path) -> None:
    inner = ["srun", "--mpi=none", "-N1", "-n1", sys.executable, "-m", "parallax_runner", "cluster=slurm", *SIMPLE]
    ended = subprocess.run(
        ["salloc", "-N2", "--ntasks-per-node=1", *inner],
        env=slurm.environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECS,
    )
    assert ended.returncode == 2, ended.stderr
    assert "a step with 1 of the 2 nodes of its job" in ended.stderr and "without srun" in ended.stderr


@pytest.mark.parametrize("tasks", [2, 1])
def test_tasks_that_would_each_train_are_refused(slurm: Slurm, tmp_path: Path, tasks: int) -> None:
    """Without cluster=slurm, each of several tasks would be a driver; a single task may be one."""
    run_dir = tmp_path / "out"
    argv = ["srun", "--mpi=none", f"-N{tasks}", f"-n{tasks}", sys.executable, "-m", "parallax_runner", *SIMPLE]
    argv += ["comm=local", "train.steps=2", f"hydra.run.dir={run_dir}"]
    ended = subprocess.run(
        argv, env=slurm.environ, cwd=tmp_path, capture_output=True, text=True, timeout=LAUNCH_SECS, check=False
    )
    if tasks == 1:
        assert ended.returncode == 0, ended.stderr
        assert Run(run_dir, 0, "", "", 0.0).summary["status"] == "finished"
        return
    assert ended.returncode == 2, ended.stderr
    assert "SLURM_STEP_NUM_TASKS=2: srun has started several processes" in ended.stderr
    assert "set cluster=slurm" in ended.stderr
    assert not run_dir.exists()


def test_a_job_whose_ranks_are_all_on_one_node_does_not_train(slurm: Slurm, tmp_path: Path) -> None:
    """mpirun adds the user's hosts to ours, so that there is room for both ranks on the first node."""
    one_node = ("comm=mpi", "comm.mpi.mpirun_options='--host n1:1'", "cluster.follow=true", "train.steps=4")
    run = launch(*TWO_NODES, *SIMPLE, *one_node, cwd=tmp_path, is_forked=False)
    assert (run.exit_status, run.summary["status"], run.summary["steps"]) == (1, "failed", 0)
    assert (
        "worker 1" in run.summary["error"]
        and "it is running on n1, but the plan assigns it to n2" in run.summary["error"]
    )


def test_scancel_saves_and_ends_and_the_run_can_go_on(slurm: Slurm, tmp_path: Path) -> None:
    run, job = submit(*ENDLESS, cwd=tmp_path)
    wait_for_step(run, job)
    slurm.command("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    (step,) = saved(run)
    assert run.summary["status"] == "interrupted" and f"{step} steps are saved" in log_of(run, job)
    again = launch(*TWO_NODES, *SIMPLE, f"train.steps={step + 3}", "cluster.follow=true", cwd=tmp_path, is_forked=False)
    assert again.exit_status == 0, again.stderr
    assert (again.summary["first_step"], again.summary["steps"]) == (step, step + 3)


def test_usr1_saves_and_the_job_goes_on_in_its_folder_and_mlflow_run(slurm: Slurm, tmp_path: Path) -> None:
    run, job = submit(*ENDLESS, "tracking=mlflow", cwd=tmp_path)
    wait_for_step(run, job)
    slurm.command("scancel", "--batch", "--signal=USR1", job)
    wait(lambda: slurm.field(job, "Restarts") == "1", lambda: log_of(run, job))
    (step,) = saved(run)
    before = len(log_of(run, job))
    start_now(slurm, job)
    wait_for_step(run, job, before)
    slurm.command("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    assert run.summary["first_step"] == step < run.summary["steps"]
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        assert store.execute("SELECT run_uuid FROM runs").fetchall() == [(run.summary["mlflow_run_id"],)]


def test_the_time_limit_is_warned_of_and_the_job_goes_on(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm sends SIGUSR1 itself, by the --signal of job.sbatch: 120 s before the limit, or up to a minute earlier."""
    run, job = submit(*ENDLESS, "cluster.time_limit=4", cwd=tmp_path)
    wait_for_step(run, job)
    wait(lambda: slurm.field(job, "Restarts") == "1", lambda: log_of(run, job))
    (step,) = saved(run)
    assert f"job {job} has been requeued" in log_of(run, job)
    assert "DUE TO TIME LIMIT" not in log_of(run, job)
    before = len(log_of(run, job))
    start_now(slurm, job)
    wait_for_step(run, job, before)
    slurm.command("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    assert run.summary["first_step"] == step < run.summary["steps"]


def test_the_time_limit_without_a_warning_saves_and_ends(slurm: Slurm, tmp_path: Path) -> None:
    """A script of the user's own, without --signal. The limit is cut once the run trains, so that nobody waits for it;
    Slurm looks at limits twice a minute."""
    run = launch(*TWO_NODES, *SIMPLE, *ENDLESS, "cluster.submit=false", cwd=tmp_path, is_forked=False).expect_success()
    script = run.run_dir / "job.sbatch"
    own = "".join(line for line in script.read_text().splitlines(True) if "--signal=" not in line)
    script.write_text(own)
    job = slurm.command("sbatch", "--parsable", "--time=60", str(script), cwd=tmp_path)
    wait_for_step(run, job)
    slurm.command("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    slurm.wait_for(job, "TIMEOUT")
    (step,) = saved(run)
    assert run.summary["status"] == "interrupted" and f"{step} steps are saved" in log_of(run, job)
    assert "DUE TO TIME LIMIT" in log_of(run, job) and slurm.field(job, "Restarts") == "0"
    assert "has been requeued" not in log_of(run, job)


def test_a_job_that_is_preempted_saves_and_goes_on(slurm: Slurm, tmp_path: Path) -> None:
    run, job = submit(*ENDLESS, cwd=tmp_path)
    wait_for_step(run, job)
    urgent = slurm.command(
        "sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "--wrap", "sleep 1", cwd=tmp_path
    )
    slurm.wait_for(urgent, "COMPLETED")
    (step,) = saved(run)
    assert slurm.field(job, "Restarts") == "1"
    before = len(log_of(run, job))
    start_now(slurm, job)
    wait_for_step(run, job, before)
    slurm.command("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    assert run.summary["first_step"] == step


def test_a_job_whose_node_is_lost_goes_on_when_there_are_nodes_again(slurm: Slurm, tmp_path: Path) -> None:
    run, job = submit(*ENDLESS[:1], "ckpt.save_secs=1", cwd=tmp_path)
    wait_for_step(run, job)
    wait(lambda: bool(saved(run)), lambda: log_of(run, job))
    slurm.kill_node("n2")
    try:
        wait(lambda: slurm.field(job, "Restarts") == "1", lambda: log_of(run, job))
    finally:
        slurm.start_node("n2")
    slurm.command("scontrol", "update", "NodeName=n2", "State=RESUME")
    start_now(slurm, job)
    # Slurm counts the restart before the lost job has ended, which may still train and write to the same log.
    begins = "\nstarting 2 workers"
    wait(lambda: log_of(run, job).count(begins) == 2, lambda: log_of(run, job))
    wait_for_step(run, job, log_of(run, job).rindex(begins))
    slurm.command("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    assert run.summary["first_step"] > 0
    slurm.wait_until_idle()


def wait_for_text(run: Run, job: str, text: str, start: int = 0) -> None:
    """Waits for a text in the job's output from position `start` on."""
    wait(lambda: text in log_of(run, job)[start:], lambda: log_of(run, job))


def test_an_elastic_job_starts_on_one_node_is_requeued_on_two_and_loses_one(slurm: Slurm, tmp_path: Path) -> None:
    """It equals a run that always has two workers."""
    own = (*arguments(tmp_path, "v1", STEP_EXAMPLES // 2), "comm=sharded")
    elastic = ("cluster.min_workers=1", "cluster.wait_secs=1", "train.max_restarts=3", "train.hang_timeout_secs=30")
    slurm.command("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    run = launch(
        *own, *TWO_NODES, *elastic, "comm.measure_rows=true", cwd=tmp_path / "job", python_path=ROOT, is_forked=False
    ).expect_success()
    found = re.search(r"submitted as job (\d+);", run.stderr)
    assert found
    job = found[1]
    wait_for_text(run, job, "parallax_runner: the run continues from step 0 with 1 worker instead of 2, on n1\n")
    wait(lambda: bool(saved(run)), lambda: log_of(run, job))

    slurm.command("scontrol", "update", "NodeName=n2", "State=RESUME")
    slurm.command("scancel", "--batch", "--signal=USR1", job)
    wait(lambda: slurm.field(job, "Restarts") == "1", lambda: log_of(run, job))
    begun, before = max(saved(run)), len(log_of(run, job))
    start_now(slurm, job)
    wait(lambda: max(saved(run)) > begun, lambda: log_of(run, job))
    assert "starting 2 workers" in log_of(run, job)[before:]

    slurm.kill_node("n2")
    try:
        wait_for_text(run, job, "with 1 worker instead of 2, on n1\n", before)
        (tmp_path / "fast").touch()
        slurm.wait_for(job, "COMPLETED", timeout_secs=LAUNCH_SECS)
    finally:
        slurm.start_node("n2")
        slurm.command("scontrol", "update", "NodeName=n2", "State=RESUME")
    assert [size["workers"] for size in run.summary["sizes"]] == [2, 1]
    assert run.summary["first_step"] == begun
    assert run.sidecar(STEPS)["examples"] == STEPS * STEP_EXAMPLES
    whole = launch(*own, "cluster.workers=2", cwd=tmp_path / "whole", python_path=ROOT).expect_success()
    expect_equal_to(whole, run)
    slurm.wait_until_idle()


def test_an_elastic_job_gives_a_node_back(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with the other node, and equals a run that always has two workers. It measures the rows of a step for
    each size."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = (*arguments(tmp_path, "v1", STEP_EXAMPLES // 2), "comm=hybrid")
    elastic = ("cluster.min_workers=1", "cluster.wait_secs=1", "train.max_restarts=3", "train.hang_timeout_secs=30")
    run = launch(
        *own, *TWO_NODES, *elastic, "comm.measure_rows=true", cwd=tmp_path / "job", python_path=ROOT, is_forked=False
    ).expect_success()
    found = re.search(r"submitted as job (\d+);", run.stderr)
    assert found
    job = found[1]
    wait(lambda: bool(saved(run)), lambda: log_of(run, job))
    slurm.command("scontrol", "update", f"JobId={job}", "NumNodes=1", cwd=tmp_path)
    wait_for_text(run, job, "with 1 worker instead of 2 and 1 server instead of 2, on n1\n")
    (tmp_path / "fast").touch()
    slurm.wait_for(job, "COMPLETED", timeout_secs=LAUNCH_SECS)
    assert log_of(run, job).count("measure: running a short trial") == 2, "for two ranks, and again for one"
    assert [(size["workers"], size["servers"]) for size in run.summary["sizes"]] == [(2, 2), (1, 1)]
    assert run.summary["restarts"] == 1
    whole = launch(*own, "cluster.workers=2", cwd=tmp_path / "whole", python_path=ROOT).expect_success()
    expect_equal_to(whole, run)
    slurm.wait_until_idle()
