"""Real runs whose model, in one rank, never returns from a step, or ends the process with a success status."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runs import Run, launch

MODEL = '''
"""y = w x; the loss passes through Python code, which performs an action in step 20 of rank 1."""

import os
import time

import tensorflow.compat.v1 as tf

calls = 0


def wait_for_ever():
    time.sleep(1000)


def pass_on(value):
    global calls
    calls += 1
    time.sleep(0.05)
    if calls == 20 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        os._exit(0) if os.environ["DEED"] == "exit" else wait_for_ever()
    return value


def build(features, optimizer):
    w = tf.get_variable("slope", shape=[], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w * features["x"] - features["y"]))
    with tf.control_dependencies([tf.numpy_function(pass_on, [loss], tf.float32)]):
        loss = tf.identity(loss)
    return {"loss": loss, "train_op": optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())}
'''


def run_with(deed: str, cwd: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Run:
    monkeypatch.setenv("DEED", deed)
    (cwd / "mymodel.py").write_text(MODEL)
    (cwd / "myconf" / "model").mkdir(parents=True)
    (cwd / "myconf" / "model" / "mine.yaml").write_text("_target_: mymodel.build\n")
    arguments = ("--config-dir", "myconf", "model=mine", "comm=mpi", "data=linear", "optimizer=gradient_descent")
    return launch(*arguments, "train.steps=100000", "tracking=off", *overrides, cwd=cwd)


def failure_of(run: Run) -> dict[str, Any]:
    return json.loads((run.run_dir / "failure.json").read_text())


def test_a_model_that_hangs_ends_the_run_with_the_stacks_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with("hang", tmp_path, monkeypatch, "train.stall_timeout_secs=10")
    assert (run.exit_status, run.summary["status"]) == (1, "failed")
    first = failure_of(run)["first"]
    assert (first["role"], first["index"]) == ("worker", 1)
    assert re.match(
        r"no step for \d+ s; worker 1 is in step 20 \(pass_on in mymodel.py:\d+\), "
        r"worker 0 is waiting for it in the exchange «\S+» \(train.stall_timeout_secs=10\)",
        first["reason"],
    ), first["reason"]
    assert first["reason"] in run.stderr
    logs = [(run.run_dir / "logs" / f"worker_{rank}.log").read_text() for rank in range(2)]
    assert "in wait_for_ever" in logs[1]
    assert all(re.search(r'File ".*train/step_runner.py", line \d+ in _run_once', log) for log in logs)


def test_a_rank_that_exits_with_status_0_in_the_middle_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with("exit", tmp_path, monkeypatch)
    assert (run.exit_status, run.summary["status"]) == (1, "failed")
    told = re.search(r"^parallax_runner: worker 1 on \S+: (.*)$", run.stderr, re.M)
    assert told is not None and told[1] == "ended before its work was done (exit status 0)", run.stderr
    assert "MPI_Abort" not in run.stderr
