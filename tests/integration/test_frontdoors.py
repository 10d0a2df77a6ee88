"""Processes that a test starts one by one, as users of other systems do: they find each other and train."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.hosts.cluster import guarded
from tests import forked
from tests.free_port import pick_free_port
from tests.integration.runs import LAUNCH_SECS
from tests.integration.scripted import ROOT, SCRIPT, STEPS, Done, expect
from tests.redis_server import needs_redis, redis_server

CAFFE2_SCRIPT = SCRIPT.with_name("train_caffe2.py")
QUICK = ("experiment=quick", "tracking=off", "train.steps=4", "train.log_every=1", "comm=hybrid")


class Processes:
    """Processes started one by one, in one folder; the output of each is in `NAME.log`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts `python ARGV` as a process that begins with TensorFlow imported; when it ends, its children end
        too."""
        with open(self.folder / f"{name}.log", "wb") as log:
            self.started[name] = subprocess.Popen(
                guarded([str(forked.STUB), *argv], signal.SIGTERM),
                env={**os.environ, **forked.environment(), **(env or {})},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self.started[name]

    def exit_statuses(self) -> dict[str, int]:
        """Returns the exit statuses once all have ended, or once one of them has failed."""
        deadline = time.monotonic() + LAUNCH_SECS
        while True:
            found = {name: process.poll() for name, process in self.started.items()}
            if any(found.values()) or None not in found.values():
                return {name: status for name, status in found.items() if status is not None}
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    monkeypatch.setenv("PARALLAX_RENDEZVOUS_SECRET", secrets.token_hex(16))
    made = Processes(tmp_path)
    try:
        yield made
    finally:
        for process in made.started.values():
            process.terminate()
        for process in made.started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def expect_steps(processes: Processes, run_dir: Path, steps: int = 4) -> None:
    """Checks that all processes succeeded, and that the run has done its steps."""
    assert set(processes.exit_statuses().values()) == {0}, processes.logs()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["steps"] == steps


def test_processes_with_tf_config_train_whoever_comes_first(processes: Processes, tmp_path: Path) -> None:
    cluster = {
        "worker": [f"127.0.0.1:{pick_free_port()}", f"127.0.0.1:{pick_free_port()}"],
        "ps": [f"127.0.0.1:{pick_free_port()}"],
    }
    for kind, index in (("ps", 0), ("worker", 1), ("worker", 0)):
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        same = ("-m", "parallax_runner.worker", *QUICK, f"hydra.run.dir={tmp_path / 'out'}")
        processes.start(f"{kind} {index}", *same, env={"TF_CONFIG": config})
    expect_steps(processes, tmp_path / "out")


def test_processes_with_the_flags_of_cluster_spec_train(processes: Processes, tmp_path: Path) -> None:
    hosts = (
        f"--ps_hosts=127.0.0.1:{pick_free_port()}",
        f"--worker_hosts=127.0.0.1:{pick_free_port()},127.0.0.1:{pick_free_port()}",
    )
    processes.start("worker 1", "-m", "parallax_runner.worker", *hosts, "--job_name=worker", "--task_index=1")
    settings = (*QUICK, f"hydra.run.dir={tmp_path / 'out'}")
    processes.start(
        "worker 0", "-m", "parallax_runner.worker", *hosts, "--job_name=worker", "--task_index=0", *settings
    )
    processes.start("ps 0", "-m", "parallax_runner.server", *hosts, "--job_name=ps", "--task_index=0")
    expect_steps(processes, tmp_path / "out")


@pytest.mark.parametrize("door", ["TF_CONFIG", "Paddle"])
def test_a_front_door_trains_under_sharded(processes: Processes, tmp_path: Path, door: str) -> None:
    """Without a server: none of the plan's variables is on one."""
    port = pick_free_port()
    workers = [f"127.0.0.1:{port}", f"127.0.0.1:{pick_free_port()}"]
    for index in (1, 0):
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        flags = () if door == "TF_CONFIG" else (f"--port={port}", "--num_gradient_servers=2", f"--trainer_id={index}")
        settings = (*QUICK[:-1], "comm=sharded", f"hydra.run.dir={tmp_path / 'out'}")
        given = settings if door == "TF_CONFIG" or index == 0 else ()
        env = {"TF_CONFIG": config} if door == "TF_CONFIG" else {}
        processes.start(f"worker {index}", "-m", "parallax_runner.worker", *flags, *given, env=env)
    expect_steps(processes, tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["comm"], summary["workers"], summary["servers"]) == ("sharded", 2, 0)


def test_rank_0_hands_a_signal_to_the_run_and_all_end(processes: Processes, tmp_path: Path) -> None:
    hosts = f"--worker_hosts=127.0.0.1:{pick_free_port()},127.0.0.1:{pick_free_port()}"
    for index in (1, 0):
        flags = (hosts, "--job_name=worker", f"--task_index={index}")
        settings = (*QUICK, "comm=sharded", "train.steps=100000", "ckpt=default", f"hydra.run.dir={tmp_path / 'out'}")
        processes.start(f"worker {index}", "-m", "parallax_runner.worker", *flags, *settings)
    log = tmp_path / "worker 0.log"
    deadline = time.monotonic() + LAUNCH_SECS
    while "\nstep " not in log.read_text():
        assert time.monotonic() < deadline, processes.logs()
        time.sleep(0.1)
    processes.started["worker 0"].terminate()
    assert processes.started["worker 0"].wait(LAUNCH_SECS) == 128 + signal.SIGTERM, processes.logs()
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["steps"] > 0
    assert list((tmp_path / "out" / "ckpt").glob("model.ckpt-*.index"))


def test_pservers_and_trainers_of_paddle_train_a_script(processes: Processes, tmp_path: Path) -> None:
    """One pserver with two ports, and two trainers, which start the same script."""
    port = pick_free_port()
    flags = (f"--port={port}", "--ports_num=2", "--ports_num_for_sparse=1", "--num_of_gradient_servers=2")
    processes.start("pserver", "-m", "parallax_runner.server", "--use_gpu=False", *flags)
    for trainer_id in (1, 0):
        init = {"port": port, "ports_num": 2, "is_local": False, "num_gradient_servers": 2, "trainer_id": trainer_id}
        asked = {"steps": STEPS, "resources": None, "paddle": init, "config": {"run_option": "PS"}}
        processes.start(f"trainer {trainer_id}", str(SCRIPT), json.dumps(asked), env={"PYTHONPATH": str(ROOT)})
    assert set(processes.exit_statuses().values()) == {0}, processes.logs()
    said = (tmp_path / "trainer 0.log").read_text()
    expect(Done(tmp_path / "out", 0, said, ""))
    assert "[worker 1] worker 1 of 2, 1 replica(s)" in said


def test_trainers_of_paddle_take_settings(processes: Processes, tmp_path: Path) -> None:
    flags = (f"--port={pick_free_port()}", "--ports_num=1", "--num_gradient_servers=2")
    settings = (*QUICK, f"hydra.run.dir={tmp_path / 'out'}")
    for trainer_id in (0, 1):
        trainer = ("-m", "parallax_runner.worker", *flags, f"--trainer_id={trainer_id}", *settings)
        processes.start(f"trainer {trainer_id}", *trainer)
    processes.start("pserver", "-m", "parallax_runner.server", *flags)
    expect_steps(processes, tmp_path / "out")


def losses_of(text: str) -> dict[int, list[float]]:
    """Returns the losses that the script has printed, by shard."""
    found = [json.loads(line) for line in re.findall(r"^\[worker \d\] losses (.*)$", text, re.M)]
    assert {shards for _, shards, *_ in found} == {2}
    return {shard: losses for shard, _, *losses in found}


@pytest.mark.parametrize("store", ["file", pytest.param("redis", marks=needs_redis)])
def test_shards_of_caffe2_train_a_resnet(store: str, processes: Processes, tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        port = opened.enter_context(redis_server(tmp_path)) if store == "redis" else None
        asked = {"store": store, "path": str(tmp_path / "a store"), "port": port, "run_dir": "out"}
        for shard_id in (1, 0):
            argv = (str(CAFFE2_SCRIPT), json.dumps({**asked, "shard_id": shard_id}))
            processes.start(f"shard {shard_id}", *argv, env={"PYTHONPATH": str(ROOT)})
        assert set(processes.exit_statuses().values()) == {0}, processes.logs()
    losses = losses_of((tmp_path / "shard 0.log").read_text())
    assert set(losses) == {0, 1}
    assert losses[0] != losses[1], "each shard has different examples"
    assert all(shard[-1] < shard[0] for shard in losses.values())


def test_caffe2_without_a_rendezvous_starts_a_worker_a_device(processes: Processes, tmp_path: Path) -> None:
    processes.start("alone", str(CAFFE2_SCRIPT), json.dumps({"run_dir": "out"}), env={"PYTHONPATH": str(ROOT)})
    assert set(processes.exit_statuses().values()) == {0}, processes.logs()
    assert set(losses_of((tmp_path / "alone.log").read_text())) == {0, 1}
