"""Every command and script of the sections of docs/clusters.md that need a scheduler or several processes: they run as
the page has them, with real processes and a real Slurm.

Tests replace the page's hosts, ports and folders with their own, and append settings that make runs small.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts.cluster import guarded
from tests.free_port import pick_free_port
from tests.integration.cluster_page import (
    ALLOCATION,
    CAFFE2,
    LOGIN_NODE,
    MANUAL,
    PADDLE,
    SWEEPS,
    TENSORFLOW,
    commands,
    scripts,
)
from tests.integration.runs import LAUNCH_SECS
from tests.integration.scripted import ROOT
from tests.integration.slurm_cluster import Slurm, lacks
from tests.integration.test_frontdoors import Processes, expect_steps, processes

__all__ = ["processes"]  # a fixture

NO_SLURM = lacks()
needs_slurm = pytest.mark.skipif(NO_SLURM is not None, reason=str(NO_SLURM))

STEPS = 4
SMALL = ("tracking=off", f"train.steps={STEPS}")
QUICK = ("experiment=quick", "comm=hybrid", *SMALL)

# A script of a trainer goes on with this behind the page's lines.
PADDLE_GRAPH = f"""
import tensorflow.compat.v1 as tf
import parallax_runner as parallax

with tf.Graph().as_default() as graph:
    weights = tf.get_variable("weights", [3], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(weights), name="loss")
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
config = parallax.Config(run_option="PS", run_dir="out", tracking=False)
session, *_ = parallax.parallel_run(graph, parallax_config=config)
for _ in range({STEPS}):
    session.run([loss, train_op])
"""
# The page's lines need these in front.
CAFFE2_MODEL = """
import types

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
model = types.SimpleNamespace()


def add_image_input(model):
    model.images = tf.random.stateless_uniform([4, 3], seed=[1, 2])


def create_resnet_model_ops(model, loss_scale):
    weights = tf.get_variable("weights", [3, 1])
    return [loss_scale * tf.reduce_mean(tf.square(tf.matmul(model.images, weights) - 1.0))]


def add_optimizer(model):
    return tf.train.GradientDescentOptimizer(0.1)
"""


def start(processes: Processes, command: str, *settings: str, env: dict[str, str] | None = None) -> None:
    """Starts a command of the page, `python …`."""
    python, *argv = shlex.split(command)
    assert python == "python", command
    processes.start(f"process {len(processes.started)}", *argv, *settings, env=env)


def type_in(lines: Sequence[str], cwd: Path) -> str:
    """Types the lines into a shell, where a later line goes to what an earlier one has started. Returns what is said,
    once all have succeeded."""
    done = subprocess.run(
        guarded(["bash"], signal.SIGTERM),
        input="\n".join([*lines, ""]),
        cwd=cwd,
        env={**os.environ, "SHELL": "/bin/bash"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LAUNCH_SECS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def summary_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def test_processes_that_you_start(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARALLAX_RENDEZVOUS_SECRET")  # the page's commands do without
    *others, driver = commands(MANUAL, {"/shared/meet": str(tmp_path / "meet")})
    for command in others:
        start(processes, command)
    start(processes, driver, *QUICK, "hydra.run.dir=out")
    expect_steps(processes, tmp_path / "out", STEPS)


def local_hosts(*names: str) -> dict[str, str]:
    return {name: f"127.0.0.1:{pick_free_port()}" for name in names}


def test_the_same_command_with_tf_config(processes: Processes, tmp_path: Path) -> None:
    command, *_ = commands(TENSORFLOW)
    chief, worker, ps = local_hosts("chief", "worker", "ps").values()
    cluster = {"chief": [chief], "worker": [worker], "ps": [ps]}
    for kind in cluster:
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})
        start(processes, command, *SMALL, env={"TF_CONFIG": config})
    expect_steps(processes, tmp_path / "runs" / "first", STEPS)


def test_commands_of_cluster_spec(processes: Processes, tmp_path: Path) -> None:
    _, *others, first = commands(TENSORFLOW, local_hosts("h1:2222", "h2:2222", "h3:2222"))
    for command in others:
        start(processes, command)
    start(processes, first, *SMALL, "hydra.run.dir=out")
    expect_steps(processes, tmp_path / "out", STEPS)


def test_commands_of_paddle(processes: Processes, tmp_path: Path) -> None:
    *others, first = commands(PADDLE, {"7164": str(pick_free_port())})
    for command in others:
        start(processes, command)
    start(processes, first, *SMALL, "cluster.replicas_per_worker=2", "hydra.run.dir=out")
    expect_steps(processes, tmp_path / "out", STEPS)


def test_scripts_of_paddle(processes: Processes, tmp_path: Path) -> None:
    port = str(pick_free_port())
    pserver, *_ = commands(PADDLE, {"7164": port})
    start(processes, pserver)
    for trainer_id in (1, 0):
        (init,) = scripts(PADDLE, {"7164": port, "trainer_id=0)": f"trainer_id={trainer_id})"})
        (tmp_path / f"trainer_{trainer_id}.py").write_text(init + PADDLE_GRAPH)
        start(processes, f"python trainer_{trainer_id}.py", env={"PYTHONPATH": str(ROOT)})
    expect_steps(processes, tmp_path / "out", STEPS)


def test_scripts_of_caffe2(processes: Processes, tmp_path: Path) -> None:
    for shard_id in (1, 0):
        places = {"/shared/meet": str(tmp_path / "meet"), "shard_id=0": f"shard_id={shard_id}"}
        (script,) = scripts(CAFFE2, places)
        (tmp_path / f"shard_{shard_id}.py").write_text(CAFFE2_MODEL + script)
        start(processes, f"python shard_{shard_id}.py", env={"PYTHONPATH": str(ROOT)})
    assert set(processes.exit_statuses().values()) == {0}, processes.logs()
    (out,) = (tmp_path / "outputs").glob("*/*")
    made = summary_of(out)
    assert (made["steps"], made["workers"]) == (1000, 2)
    assert made["loss_last"] < made["loss_first"]


@needs_slurm
def test_a_job_from_a_login_node(slurm: Slurm, tmp_path: Path) -> None:
    (command,) = commands(LOGIN_NODE, {"cluster.tasks_per_node=4 ": "cluster.tasks_per_node=2 "})
    said = type_in([shlex.join([*shlex.split(command), *QUICK, "cluster.follow=true"])], tmp_path)
    made = summary_of(tmp_path / "runs" / "first")
    assert (made["status"], made["steps"], made["workers"], made["servers"]) == ("finished", STEPS, 4, 2), said
    job = re.search(r"submitted as job (\d+)", said)
    assert job is not None and slurm.field(job[1], "Partition") == "gpu", said
    assert "gres:gpu:4" in slurm.field(job[1], "TresPerNode")


@needs_slurm
def test_a_run_in_an_allocation(slurm: Slurm, tmp_path: Path) -> None:
    salloc, driver = commands(ALLOCATION, {"--ntasks-per-node=4": "--ntasks-per-node=2"})
    said = type_in([salloc, shlex.join([*shlex.split(driver), *QUICK, "hydra.run.dir=out"])], tmp_path)
    made = summary_of(tmp_path / "out")
    assert (made["status"], made["steps"], made["workers"], made["servers"]) == ("finished", STEPS, 4, 2), said


@needs_slurm
def test_a_sweep_of_slurm_jobs(slurm: Slurm, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra slurm is not installed")
    (command,) = commands(SWEEPS)
    before = jobs_of(slurm)
    said = type_in([shlex.join([*shlex.split(command), *SMALL, "hydra.sweep.dir=sweep"])], tmp_path)
    made = [json.loads(path.read_text()) for path in (tmp_path / "sweep").rglob("summary.json")]
    assert [one["status"] for one in made] == ["finished"] * 4, said
    new = jobs_of(slurm) - before
    assert len(new) == 4
    for job in new:
        told = [slurm.field(job, name) for name in ("JobState", "Partition", "TresPerNode")]
        assert told == ["COMPLETED", "gpu", "gres:gpu:1"]


def jobs_of(slurm: Slurm) -> set[str]:
    """The ids of all jobs that Slurm remembers."""
    return set(re.findall(r"\bJobId=(\d+)", slurm.command("scontrol", "show", "job", "-o")))
