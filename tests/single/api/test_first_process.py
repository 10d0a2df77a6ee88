"""Where `fit` and `parallel_run` become the driver of a run, and where they refuse to: fit only in workers."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import parallax_runner
from parallax_runner.api import scripts_without_driver
from parallax_runner.api.first_process import check_first_process
from parallax_runner.config.schema import ClusterConfig
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.launch.control import wire
from parallax_runner.launch.launchers.manual import secret
from parallax_runner.worker import script as scripts
from tests.single.api.test_refusals import graph_of_a_script

X, Y = np.zeros([12, 2], np.float32), np.zeros([12, 1], np.float32)
CLUSTER = {"worker": ["127.0.0.1:7161", "127.0.0.1:7162"], "ps": ["127.0.0.1:7163"]}


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])


def fit(**given: Any) -> None:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    parallax_runner.fit(model, X, Y, batch_size=4, **{"overrides": ["tracking=off"], **given})


def parallel_run(resource_info: Any = None) -> None:
    config = parallax_runner.Config(tracking=False, run_dir="out")
    parallax_runner.parallel_run(graph_of_a_script(), resource_info, True, config)


def raised_in_thread(call: Callable[[], None]) -> BaseException:
    found: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, name="mine")
    thread.start()
    thread.join(60)
    return found[0]


def test_a_thread(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = "was called in the thread 'mine', and in each worker the main thread would run the rest of the script"
    error = raised_in_thread(parallel_run)
    assert isinstance(error, SystemExit) and error.code == 1
    assert f"parallel_run {told}" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_child_process_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.CONTROL_ADDRESS, "127.0.0.1:1")
    with pytest.raises(LaunchError, match="and fit would start a run in each worker"):
        fit()
    with pytest.raises(SystemExit, match="1"):
        parallel_run()
    assert list(tmp_path.iterdir()) == []


def test_a_child_of_multiprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    check_first_process("parallel_run")
    monkeypatch.setattr("multiprocessing.parent_process", object)
    told = r"parallel_run was called in the child process 'MainProcess'.* below `if __name__"
    with pytest.raises(LaunchError, match=told):
        check_first_process("parallel_run")


def test_a_process_that_a_worker_forks_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    of_parent = scripts.Worker(Path(), 0, None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(scripts, "_workers", [of_parent])
    assert scripts.this_worker() is of_parent
    of_parent.pid -= 1
    assert scripts.this_worker() is None


@pytest.mark.parametrize("call", [fit, parallel_run])
def test_processes_of_another_launcher(
    call: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises((ConfigError, SystemExit)) as raised:
        call()
    told = str(raised.value) if isinstance(raised.value, ConfigError) else capfd.readouterr().err
    assert "WORLD_SIZE=2: torchrun or a similar launcher has started several processes" in told
    assert "start the script once, and " in told
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stood_by(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What becomes of processes with TF_CONFIG, which are not started."""
    started: list[Any] = []
    monkeypatch.setenv(secret.VARIABLE, "0123456789abcdef")
    monkeypatch.setattr(scripts_without_driver, "_lines", [])
    monkeypatch.setattr(
        "parallax_runner.launch.launchers.manual.stand_by.stand_by", lambda *told, **_: started.append(told) or 5
    )
    monkeypatch.setattr("parallax_runner.frontdoors.with_driver.start_beside", lambda *told: started.append(told))
    monkeypatch.setattr(scripts_without_driver.atexit, "register", lambda *_: None)
    monkeypatch.setattr(scripts_without_driver, "leave", sys.exit)  # pytest goes on
    return started


def set_tf_config(monkeypatch: pytest.MonkeyPatch, kind: str, index: int) -> None:
    content = {"cluster": CLUSTER, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(content))


@pytest.mark.parametrize("call", [fit, parallel_run])
@pytest.mark.parametrize(("kind", "index", "role"), [("worker", 1, "worker"), ("ps", 0, "server")])
def test_tf_config_makes_a_process_stand_by(
    call: Callable[[], None], kind: str, index: int, role: str, stood_by: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_tf_config(monkeypatch, kind, index)
    with pytest.raises(SystemExit, match="5"):
        call()
    assert stood_by == [(role, "tcp://127.0.0.1:7161", index)]


def test_rank_0_of_tf_config_drives(stood_by: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(monkeypatch, "worker", 0)
    scripts_without_driver.join_or_refuse(lambda: ClusterConfig(resource_info=None), once="")
    options = ["--rendezvous=tcp://127.0.0.1:7161", "--timeout-secs=600", "--rank=0"]
    assert stood_by == [("parallax_runner.worker", options)]
    lines = ["cluster=manual", "cluster.rendezvous=tcp://127.0.0.1:7161", "cluster.workers=2", "cluster.servers=1"]
    assert scripts_without_driver.cluster_lines() == lines
    # The next call of the script.
    scripts_without_driver.join_or_refuse(lambda: ClusterConfig(launcher="manual"), once="")
    assert len(stood_by) == 1


def test_a_cluster_that_the_user_starts_is_left_alone(stood_by: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(monkeypatch, "worker", 1)
    scripts_without_driver.join_or_refuse(lambda: ClusterConfig(launcher="manual"), once="")
    assert stood_by == scripts_without_driver.cluster_lines() == []


def test_hosts_besides_those_of_tf_config(
    stood_by: list[Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    set_tf_config(monkeypatch, "worker", 1)
    with pytest.raises(SystemExit, match="2"):
        parallel_run(["localhost: 0,1"])
    assert "TF_CONFIG={" in (told := capfd.readouterr().err)
    assert "already names the machine of each process; omit this setting" in told
    assert stood_by == []
