"""Workers and servers that a test starts one by one, as a scheduler would: they find the driver, train, and end."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import redis

from benchmarks.hosts.cluster import guarded
from parallax_runner.collectives.horovod.backend import Horovod
from tests import forked
from tests.free_port import pick_free_port
from tests.integration.command_lines import control_secrets, showing
from tests.integration.listening import listening, with_descendants
from tests.integration.runs import LAUNCH_SECS, launch, started
from tests.redis_server import needs_redis, redis_server

QUICK = ("experiment=quick", "tracking=off", "train.steps=4", "train.log_every=1")
ENDS_SECS = 60.0
# Before worker 0 has come.
RENDEZVOUS = "rendezvous"
MOMENTS = [RENDEZVOUS, "loading TensorFlow", "loading the graph", r"step \d+/"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LAUNCH_SECS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class StandBy:
    """Processes that stand by at a rendezvous, by name."""

    def __init__(self, address: str, folder: Path, env: dict[str, str]) -> None:
        self.address, self.folder, self.env = address, folder, env
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.python = sys.executable

    def start(self, role: str, *arguments: str) -> psutil.Process:
        name = " ".join([role, *arguments, str(len(self.processes))])
        argv = [self.python, "-m", f"parallax_runner.{role}", f"--rendezvous={self.address}", *arguments]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                guarded(argv, signal.SIGTERM),
                env={**os.environ, **self.env},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return psutil.Process(self.processes[name].pid)

    def exit_statuses(self) -> dict[str, int]:
        deadline = time.monotonic() + ENDS_SECS
        return {name: process.wait(deadline - time.monotonic()) for name, process in self.processes.items()}


@contextlib.contextmanager
def standing_by(address: str, folder: Path, env: dict[str, str]) -> Iterator[StandBy]:
    folder.mkdir(parents=True, exist_ok=True)
    made = StandBy(address, folder, env)
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def at_folder(tmp_path: Path) -> Iterator[StandBy]:
    with standing_by(f"file://{tmp_path / 'meet'}", tmp_path / "logs", {}) as made:
        yield made


def overrides(made: StandBy, *more: str) -> Sequence[str]:
    return (*QUICK, "cluster=manual", f"cluster.rendezvous={made.address}", *more)


def test_they_train_as_processes_of_mpirun_do_whoever_comes_first(tmp_path: Path, at_folder: StandBy) -> None:
    at_folder.python, at_folder.env = str(forked.STUB), forked.environment()
    at_folder.start("worker", "--rank=1")
    with started(*overrides(at_folder, "comm=hybrid"), cwd=tmp_path / "manual") as running:
        at_folder.start("server")
        at_folder.start("worker")
        manual = running.wait().expect_success()
    assert set(at_folder.exit_statuses().values()) == {0}
    assert [path.name for path in (tmp_path / "meet").iterdir()] == ["secret"]
    by_mpirun = launch(*QUICK, "comm=hybrid", cwd=tmp_path / "mpirun").expect_success()
    assert manual.summary["loss_last"] == pytest.approx(by_mpirun.summary["loss_last"], rel=1e-5)
    assert manual.summary["steps"] == 4
    added = [note for note in manual.plan["notes"] if note not in by_mpirun.plan["notes"]]
    reason = "comm.backend=auto, and the native exchanges need mpirun, which cluster=manual does not use"
    assert added == [Horovod().note_without_mpirun, f"tensors are exchanged by Horovod: {reason}"]


def test_a_driver_that_listens_itself_and_jobs_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_RENDEZVOUS_SECRET", secrets.token_hex(16))
    with standing_by(f"tcp://127.0.0.1:{pick_free_port()}", tmp_path / "logs", {}) as made:
        for _ in range(2):
            made.start("worker")
        sweep = ("comm=sharded", "train.seed=1,2", f"hydra.sweep.dir={tmp_path / 'sweep'}")
        launch("-m", *overrides(made, *sweep), cwd=tmp_path, is_forked=False).expect_success()
        assert set(made.exit_statuses().values()) == {0}
    assert len(list((tmp_path / "sweep").glob("*/summary.json"))) == 2


@needs_redis
def test_they_find_each_other_by_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = secrets.token_hex(16)
    monkeypatch.setenv("PARALLAX_RENDEZVOUS_SECRET", secrets.token_hex(16))
    monkeypatch.setenv("PARALLAX_REDIS_PASSWORD", password)
    with redis_server(tmp_path, password=password) as port:
        with standing_by(f"redis://127.0.0.1:{port}/runs/1", tmp_path / "logs", {}) as made:
            for role in ("server", "worker", "worker"):
                made.start(role)
            run = launch(*overrides(made, "comm=hybrid"), cwd=tmp_path / "run", is_forked=False).expect_success()
            assert set(made.exit_statuses().values()) == {0}
        assert redis.Redis(port=port, password=password).keys("*") == []
    assert run.summary["steps"] == 4
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith("redis-")]
    assert [path for path in written if password.encode() in path.read_bytes()] == []


def test_a_killed_worker_ends_the_run_and_all_that_stand_by(tmp_path: Path, at_folder: StandBy) -> None:
    """Before, while they train, no command line has a secret."""
    victim = at_folder.start("worker", "--rank=1")
    for role in ("worker", "server"):
        at_folder.start(role)
    with started(*overrides(at_folder, "comm=hybrid", "train.steps=100000"), cwd=tmp_path / "run") as running:
        running.wait_for_step()
        driver = psutil.Process(running.process.pid)
        there = [driver, *(psutil.Process(one.pid) for one in at_folder.processes.values())]
        secrets_of_run = control_secrets(each for one in there for each in with_descendants(one))
        assert len(secrets_of_run) == 1
        secrets_of_run.add((tmp_path / "meet" / "secret").read_text())
        assert list(showing(secrets_of_run)) == [] != list(showing({str(running.run_dir)}))
        victim.kill()
        run = running.wait(ENDS_SECS)
        running.seconds_until_none_left(ENDS_SECS)
    assert run.exit_status == 1
    assert "worker 1" in run.summary["error"]
    assert all(at_folder.exit_statuses().values()), "none of them says that all was well"


# Worker 0 runs Horovod's store, from before it builds the graph.
KILLS = [
    *itertools.product(["driver", "worker 1", "server 0"], MOMENTS),
    *itertools.product(["worker 0"], MOMENTS[2:]),
]


@pytest.mark.parametrize(("victim", "moment"), KILLS)
def test_whoever_is_killed_all_end_and_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, moment: str
) -> None:
    monkeypatch.setenv("PARALLAX_RENDEZVOUS_SECRET", secrets.token_hex(16))
    with standing_by(f"tcp://127.0.0.1:{pick_free_port()}", tmp_path / "logs", {}) as made:
        there = {"worker 1": made.start("worker", "--rank=1"), "server 0": made.start("server", "--index=0")}
        if moment != RENDEZVOUS:
            there["worker 0"] = made.start("worker", "--rank=0")
        with started(*overrides(made, "comm=hybrid", "train.steps=100000"), cwd=tmp_path / "run") as running:
            there["driver"] = psutil.Process(running.process.pid)
            if moment == RENDEZVOUS:
                log = running.run_dir / "logs" / "driver.log"
                wait_until(lambda: log.exists() and log.read_text().endswith(f"{made.address} for worker 0\n"))
            else:
                running.wait_for_line(moment)
            family = [one for process in there.values() for one in with_descendants(process)]
            addresses = {(one.address, one.port) for one in listening(family)}
            killed_secs = time.monotonic()
            there[victim].kill()
            run = running.wait(ENDS_SECS)
            statuses = made.exit_statuses()
            _, left = psutil.wait_procs(family, ENDS_SECS)
            secs = time.monotonic() - killed_secs
    assert not left and secs < ENDS_SECS
    assert all(statuses.values()), "none of them says that all was well"
    assert addresses and not addresses & {(one.address, one.port) for one in listening(psutil.process_iter())}
    if victim == "driver":
        assert run.exit_status == -signal.SIGKILL
        for log in (tmp_path / "logs").iterdir():
            assert f"the driver of {running.run_dir} has exited" in log.read_text()
    else:
        assert run.exit_status == 1
        assert run.summary["status"] == "failed" and run.summary["error"] in run.stderr
        assert re.search(
            rf"\b{victim}\b.*{'exited while the driver was waiting' if moment == RENDEZVOUS else 'killed'}",
            run.summary["error"],
        )


# Only the workers join: the driver, which builds the same graph, has no ranks.
JOINS = """
import os
import numpy as np
import tensorflow.compat.v1 as tf
from models import simple
from parallax_runner import mpi_collectives


def build(features, optimizer):
    if "PARALLAX_RANK" in os.environ:
        mpi_collectives.Session(graph=tf.Graph())
    # A model that calls Python is built in each worker.
    one = tf.ensure_shape(tf.numpy_function(lambda: np.float32(1), [], tf.float32), [])
    return simple.build(features | {"x": features["x"] * one}, optimizer)
"""


@pytest.mark.parametrize("comm", ["mpi", "ps"])
def test_mpi_collectives_are_refused(tmp_path: Path, at_folder: StandBy, comm: str) -> None:
    """Under comm=mpi the ranks are joined by Gloo before the model is built; under comm=ps they are never joined."""
    module = tmp_path / "joins.py"
    module.write_text(JOINS)
    at_folder.env["PYTHONPATH"] = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    for role in ("worker", "worker", *(["server"] if comm == "ps" else [])):
        at_folder.start(role)
    simple = ("model=simple", "data=linear", "optimizer=gradient_descent", "model._target_=joins.build", f"comm={comm}")
    where = (f"cluster.rendezvous={at_folder.address}", "cluster=manual", "tracking=off", "train.steps=2")
    run = launch(*simple, *where, cwd=tmp_path / "run", python_path=tmp_path, is_forked=False)
    assert run.exit_status == 1
    assert "mpi_collectives needs MPI, but HOROVOD_CONTROLLER=gloo connects the ranks through Gloo" in run.stderr
    assert run.losses() == {}
    assert all(at_folder.exit_statuses().values())


def test_the_driver_names_those_that_do_not_come(tmp_path: Path, at_folder: StandBy) -> None:
    at_folder.start("worker", "--rank=1")
    more = ("comm=hybrid", "cluster.rendezvous_timeout_secs=8")
    run = launch(*overrides(at_folder, *more), cwd=tmp_path / "run", is_forked=False)
    assert run.exit_status == 1
    assert "(cluster.rendezvous_timeout_secs): worker 0, server 0; registered: worker 1" in run.stderr
    assert set(at_folder.exit_statuses().values()) == {1}
