"""Sweeps whose jobs are jobs of a real Slurm of two nodes (tests/integration/slurm_cluster.py), without accounting."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.runs import Running, launch, started
from tests.integration.slurm_cluster import Slurm, lacks, start_now, wait
from tests.integration.test_sweeps import Sweep, newest_step

MISSING = lacks()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra slurm is not installed")

SIMPLE = ("model=simple", "data=linear", "optimizer=gradient_descent", "tracking=off")
ON_SLURM = ("-m", "hydra/launcher=submitit_slurm", *SIMPLE)
# Long enough to be met in the midst of its steps.
MANY = 40000


def sweep(*arguments: str, cwd: Path) -> Sweep:
    run = launch(*ON_SLURM, *arguments, f"hydra.sweep.dir={cwd / 'sweep'}", cwd=cwd, name="sweep", is_forked=False)
    return Sweep(run)


def events(made: Sweep | Path) -> list[dict]:
    """All lines of the ledger; none before there is one."""
    path = (made if isinstance(made, Path) else made.dir) / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def slurm_jobs(made: Sweep | Path, event: str) -> dict[str, str]:
    """The Slurm job of each of the sweep's jobs, by an event."""
    return {one["job"]: one["slurm_job"] for one in events(made) if one["event"] == event}


def when(running: Running, condition: Callable[[], bool]) -> None:
    """Waits for a moment of a sweep that runs."""

    def is_there() -> bool:
        assert running.process.poll() is None, running.wait().stderr
        return condition()

    wait(is_there, lambda: running.wait().stderr)


def test_four_jobs_one_of_which_fails_and_the_same_sweep_again(slurm: Slurm, tmp_path: Path) -> None:
    """As an array and a single job, because this Slurm has arrays of at most three jobs."""
    rates = ("0.01", "0.02", "0.03", "1e+30")
    names = [f"optimizer.learning_rate-{rate}" for rate in rates]
    arguments = ("comm=local", "train.steps=30", f"optimizer.learning_rate={','.join(rates)}")
    first = sweep(*arguments, cwd=tmp_path)
    assert first.run.exit_status == 1, first.run.stderr
    assert first.statuses() == dict(zip(names, [*["finished"] * 3, "failed"], strict=True))
    submitted = slurm_jobs(first, "submitted")
    assert list(submitted) == names
    assert [job.partition("_")[2] for job in submitted.values()] == ["0", "1", "2", ""]
    assert slurm_jobs(first, "started") == submitted
    states = [slurm.field(job, "JobState") for job in submitted.values()]
    assert states == [*["COMPLETED"] * 3, "FAILED"], "Slurm says so too"
    assert f"optimizer.learning_rate=1e+30: failed (Slurm job {submitted[names[3]]}); log: " in first.run.stderr
    assert "1 of 4 jobs have not finished" in first.run.stderr

    again = sweep(*arguments, cwd=tmp_path)
    assert again.run.exit_status == 1, again.run.stderr
    assert f"sweep {again.dir}: 3 finished, 1 to do\n" in again.run.stderr
    assert again.events() == [
        *((name, "skipped") for name in names[:3]),
        *((names[3], event) for event in ("submitted", "started", "failed")),
    ]


def test_ctrl_c_ends_the_jobs_and_the_sweep_goes_on(slurm: Slurm, tmp_path: Path) -> None:
    """One job at a time, so that the last two have not begun."""
    steps = (5, MANY, 6, 7)
    names = [f"train.steps-{count}" for count in steps]
    arguments = ("comm=local", f"train.steps={','.join(map(str, steps))}", "ckpt.save_steps=1000")
    arguments += ("hydra.launcher.array_parallelism=1", "train.log_every=1000")
    with started(*ON_SLURM, *arguments, f"hydra.sweep.dir={tmp_path / 'sweep'}", cwd=tmp_path, name="sweep") as running:
        when(running, lambda: newest_step(tmp_path / "sweep" / names[1]) > 0)
        running.process.send_signal(signal.SIGINT)
        ended = Sweep(running.wait())
    assert ended.run.exit_status == 130, ended.run.stderr
    assert ended.statuses() == dict(zip(names, ["finished", "interrupted", "not run", "not run"], strict=True))
    assert slurm.command("squeue", "--noheader") == ""
    reached = newest_step(ended.dir / names[1])
    assert reached == ended.summary(names[1])["steps"] > 0

    done = sweep(*arguments, cwd=tmp_path)
    assert done.run.exit_status == 0, done.run.stderr
    assert f"sweep {done.dir}: 1 finished, 1 continues at step {reached}, 2 to do\n" in done.run.stderr
    assert set(done.statuses().values()) == {"finished"}
    assert done.summary(names[1])["first_step"] == reached


def test_a_killed_sweep_leaves_its_jobs_to_slurm(slurm: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    arguments = ("comm=local", f"train.steps={MANY},9", "ckpt.save_steps=1000", "hydra.launcher.array_parallelism=1")
    with started(*ON_SLURM, *arguments, f"hydra.sweep.dir={folder}", cwd=tmp_path, name="sweep") as running:
        when(running, lambda: newest_step(folder / f"train.steps-{MANY}") > 0)
        running.process.kill()
        running.process.wait()
        job, waiting = slurm_jobs(folder, "submitted").values()
        refused = sweep(*arguments, cwd=tmp_path)
        assert refused.run.exit_status == 2
        assert f"Slurm job {job} from an earlier start is still running train.steps-{MANY}. Wait" in refused.run.stderr
        assert f"end it with scancel {job}" in refused.run.stderr
        slurm.command("scancel", job, waiting)
        wait(lambda: slurm.command("squeue", "--noheader") == "", lambda: slurm.command("squeue"))
    done = sweep(*arguments, cwd=tmp_path)
    assert done.run.exit_status == 0, done.run.stderr
    assert re.search(r": 0 finished, 1 continues at step \d+, 1 to do\n", done.run.stderr)


def test_the_warning_before_the_time_limit_and_a_job_that_is_killed(slurm: Slurm, tmp_path: Path) -> None:
    """The first job goes on after it was queued again. The second one leaves nothing that says how it ended."""
    folder = tmp_path / "sweep"
    arguments = ("comm=mpi", f"train.steps={MANY}", "train.seed=1,2", "ckpt.save_steps=1000", "train.log_every=1000")
    with started(*ON_SLURM, *arguments, f"hydra.sweep.dir={folder}", cwd=tmp_path, name="sweep") as running:
        for name in ("train.seed-1", "train.seed-2"):
            when(running, lambda name=name: newest_step(folder / name) > 0)
        warned, killed = slurm_jobs(folder, "submitted").values()
        (pid,) = (one["pid"] for one in events(folder) if (one["event"], one.get("slurm_job")) == ("started", killed))
        slurm.command("scancel", "--signal=USR2", warned)  # as `sbatch --signal=USR2@120` does
        os.kill(pid, signal.SIGKILL)  # scancel --signal=KILL would be SIGTERM first
        when(running, lambda: slurm.field(warned, "Restarts") == "1")
        start_now(slurm, warned)
        made = Sweep(running.wait())
    assert made.run.exit_status != 0
    assert made.statuses() == {"train.seed-1": "finished", "train.seed-2": "failed"}, made.run.stderr
    assert [one["event"] for one in events(made) if one.get("job") == "train.seed-1"] == [
        *("submitted", "started", "interrupted", "started", "finished")
    ]
    assert 0 < made.summary("train.seed-1")["first_step"] < MANY
    (lost,) = (one for one in made.results() if one["status"] == "failed")
    assert f"Slurm job {killed} ended in state FAILED and left no result; log: " in lost["error"]


def test_jobs_of_two_nodes(slurm: Slurm, tmp_path: Path) -> None:
    """The sizes of cluster=slurm are those of the Slurm jobs."""
    made = sweep(
        *("comm=ps", "cluster=slurm", "cluster.nodes=2", "cluster.tasks_per_node=1", "train.steps=4", "train.seed=1,2"),
        cwd=tmp_path,
    )
    assert made.run.exit_status == 0, made.run.stderr
    for name in ("train.seed-1", "train.seed-2"):
        assert (made.summary(name)["workers"], made.summary(name)["servers"]) == (2, 2)
    assert {slurm.field(job, "NumNodes") for job in slurm_jobs(made, "submitted").values()} == {"2"}


def test_a_cluster_that_takes_no_job(slurm: Slurm, tmp_path: Path) -> None:
    made = sweep("comm=local", "train.steps=4", "train.seed=1,2", "hydra.launcher.partition=nowhere", cwd=tmp_path)
    assert made.run.exit_status == 1
    assert "hydra/launcher=submitit_slurm: sbatch: error: invalid partition specified: nowhere" in made.run.stderr
    assert "Traceback" not in made.run.stderr
