"""A secret that a configuration reads from the environment: it reaches the processes of a run on hosts that do not have
the variable, and nothing that the run leaves."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.integration.runs import Run, launch
from tests.integration.test_manual import standing_by

SECRET = 'hunter2 "$x" hunter2'
MODEL = """
import hashlib

import tensorflow.compat.v1 as tf


def build(features, optimizer, *, password, url):
    assert hashlib.sha256(password.encode()).hexdigest() == "DIGEST", "another password"
    assert url == f"db://me:{password}@host", "another url"
    w = tf.get_variable("slope", shape=[], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w * features["x"] - features["y"]))
    return {"loss": loss, "train_op": optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())}
""".replace("DIGEST", hashlib.sha256(SECRET.encode()).hexdigest())
CONFIG = """
_target_: mymodel.build
password: ${oc.env:MY_DB_PW}
url: db://me:${model.password}@host
"""
ARGUMENTS = ("--config-dir", "myconf", "model=mine", "data=linear", "optimizer=gradient_descent", "train.steps=3")
ARGUMENTS = (*ARGUMENTS, "comm=ps", "cluster.workers=1", "+tracking.tags.db=${oc.env:MY_DB_PW}", "train.log_every=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "mymodel.py").write_text(MODEL)
    (folder / "myconf" / "model").mkdir(parents=True)
    (folder / "myconf" / "model" / "mine.yaml").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """A run whose worker and server come from elsewhere, without the variable. A sweep would write the same files."""
    with pytest.MonkeyPatch.context() as patch, standing_by(f"file://{folder / 'meet'}", folder / "logs", {}) as made:
        patch.delenv("MY_DB_PW", raising=False)
        made.start("server")
        made.start("worker")
        patch.setenv("MY_DB_PW", SECRET)
        manual = ("cluster=manual", "cluster.servers=1", f"cluster.rendezvous={made.address}")
        return launch(*ARGUMENTS, *manual, cwd=folder, is_forked=False)


def test_the_processes_have_the_value(run: Run) -> None:
    run.expect_success()
    assert run.summary["steps"] == 3


def test_an_error_does_not_show_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DB_PW", SECRET)
    refused = launch(*ARGUMENTS, "ckpt.resume=nowhere", f"hydra.run.dir={tmp_path}", cwd=folder)
    assert refused.exit_status == 2
    assert "ckpt.resume=nowhere (command line)" in refused.stderr
    assert SECRET not in refused.stdout + refused.stderr


def test_nothing_that_is_left_has_it(run: Run, folder: Path) -> None:
    run.expect_success()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"config.yaml", "journal.jsonl", "plan.json", "summary.json", "mlflow.db"} <= {path.name for path in files}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in run.stdout + run.stderr


def test_the_record_names_the_variable(run: Run, folder: Path) -> None:
    run.expect_success()
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    found = client.get_run(run.summary["mlflow_run_id"]).data
    assert found.params["model.password"] == found.tags["db"] == "${oc.env:MY_DB_PW}"
    assert found.params["model.url"] == "db://me:***@host"


def test_a_command_without_the_variable_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_DB_PW", raising=False)
    refused = launch(*ARGUMENTS, cwd=folder, name="refused", is_forked=False)
    assert refused.exit_status == 2
    told = refused.stderr.strip().splitlines()
    assert len(told) == 1 and "'MY_DB_PW' not found" in told[0] and "mine.yaml:3" in told[0]
    assert not os.path.exists(refused.run_dir)
