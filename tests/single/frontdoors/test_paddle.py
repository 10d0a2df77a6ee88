"""Which process of a run a pserver or a trainer of Paddle is."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from parallax_runner.api import scripts_without_driver
from parallax_runner.errors import ConfigError
from parallax_runner.frontdoors import entry
from parallax_runner.frontdoors.door import Task
from parallax_runner.frontdoors.paddle import flags
from parallax_runner.frontdoors.paddle import trainer_init as api
from parallax_runner.launch.launchers.manual import secret

AT = "tcp://127.0.0.1:7164"


def of_flags(role: str, *argv: str, **environ: str) -> Task | None:
    return flags.Paddle.task(role, entry._parser(role, [flags.Paddle]).parse_args(argv), environ)


def test_the_commands_of_paddles_own_example() -> None:
    flags = ("--port=7164", "--ports_num=1", "--num_of_gradient_servers=2")
    assert of_flags("server", "--use_gpu=False", *flags) == Task("server", None, AT, 2, 1, gpus="")
    assert of_flags("worker", "--trainer_id=1", *flags) == Task("worker", 1, AT, 2, 1)
    first = of_flags("worker", *flags)
    assert first is not None and first.starts_driver
    assert of_flags("worker") is None


def test_a_pserver_of_several_ports_is_several_servers() -> None:
    server = of_flags("server", "--port=20134", "--ports_num=3", "--ports_num_for_sparse=1", "--num_gradient_servers=2")
    assert server == Task("server", None, "tcp://127.0.0.1:20134", 2, 3, count=3)
    several = {"PARALLAX_RENDEZVOUS": "file:///meet"}
    trainer = of_flags("worker", "--ports_num=3", "--pservers=a:7164, b:7164", "--num_gradient_servers=2", **several)
    assert trainer == Task("worker", 0, "file:///meet", 2, 6)


def test_arguments_go_before_variables() -> None:
    environ = {"PADDLE_INIT_TRAINER_ID": "1", "PADDLE_INIT_NUM_GRADIENT_SERVERS": "3", "PADDLE_INIT_PORT": "9"}
    found = flags.settings_of({"trainer_id": 2, "port": None, "use_gpu": False}, environ)
    assert found == flags.Settings(port=9, num_gradient_servers=3, trainer_id=2, use_gpu=False)


@pytest.mark.parametrize(
    ("argv", "wrong"),
    [
        (["--port=x"], "port=x: expected an integer, at least 1"),
        (["--ports_num=0"], "ports_num=0: expected an integer, at least 1"),
        (["--trainer_id=1"], "trainer_id=1: expected an integer, at least 0 and less than num_gradient_servers=1"),
        (["--use_gpu=perhaps"], "use_gpu=perhaps: expected True or False"),
        (["--nics=nowhere0"], "nics=nowhere0: expected an interface with an IPv4 address; this machine has lo"),
        (["--pservers=a,b"], "pservers=a,b: on several machines, PARALLAX_RENDEZVOUS must give"),
    ],
)
def test_wrong_flags(argv: list[str], wrong: str) -> None:
    with pytest.raises(ConfigError) as raised:
        of_flags("worker", *argv)
    assert wrong in str(raised.value)


def test_a_network_interface_has_the_address() -> None:
    task = of_flags("server", "--nics=lo")
    assert task is not None
    assert task.address == "127.0.0.1"
    assert "--address=127.0.0.1" in task.worker_options(5.0)


def test_several_servers_are_started_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(entry, "run_several", lambda *told: started.append(told) or 3)
    monkeypatch.setenv(secret.VARIABLE, "0123456789abcdef")
    assert entry.start("server", ["--port=7164", "--ports_num=2"]) == 3
    assert started == [("parallax_runner.server", [f"--rendezvous={AT}", "--timeout-secs=600"], 2)]


@pytest.fixture
def stood_by(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `init` makes of processes, which are not started."""
    started: list[Any] = []
    monkeypatch.setenv(secret.VARIABLE, "0123456789abcdef")
    monkeypatch.setattr(scripts_without_driver, "_lines", [])
    monkeypatch.setattr(
        "parallax_runner.launch.launchers.manual.stand_by.stand_by", lambda *told, **_: started.append(told) or 0
    )
    monkeypatch.setattr("parallax_runner.frontdoors.with_driver.start_beside", lambda *told: started.append(told))
    monkeypatch.setattr(scripts_without_driver.atexit, "register", lambda *_: None)
    monkeypatch.setattr(scripts_without_driver, "leave", sys.exit)  # pytest goes on
    return started


def test_the_script_of_trainer_0_drives_and_the_others_end_in_init(stood_by: list[Any]) -> None:
    with pytest.raises(SystemExit) as ended:
        api.init(port=7164, ports_num=2, num_of_gradient_servers=2, trainer_id=1, is_local=False)
    assert ended.value.code == 0
    assert stood_by.pop() == ("worker", AT, 1)
    assert scripts_without_driver.cluster_lines() == []
    api.init(port=7164, ports_num=2, num_of_gradient_servers=2, trainer_id=0, is_local=False)
    assert stood_by.pop() == (
        "parallax_runner.worker",
        [f"--rendezvous={AT}", "--timeout-secs=600", "--rank=0"],
    )
    assert scripts_without_driver.cluster_lines() == [
        *("cluster=manual", f"cluster.rendezvous={AT}", "cluster.workers=2", "cluster.servers=2")
    ]


def test_trainer_count_changes_nothing(stood_by: list[Any]) -> None:
    api.init(trainer_count=4, num_gradient_servers=2, trainer_id=0)
    assert stood_by == [("parallax_runner.worker", [f"--rendezvous={AT}", "--timeout-secs=600", "--rank=0"])]
    assert scripts_without_driver.cluster_lines() == [
        *("cluster=manual", f"cluster.rendezvous={AT}", "cluster.workers=2", "cluster.servers=1")
    ]


def test_a_local_script_stays_alone(stood_by: list[Any]) -> None:
    api.init(use_gpu=False, is_local=True)
    assert stood_by == scripts_without_driver.cluster_lines() == []


def test_gpus_are_hidden(stood_by: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    api.init(use_gpu=False)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_what_is_wrong_ends_the_script_with_one_message(
    stood_by: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        api.init(trainer_id=5)
    assert ended.value.code == 2
    expected = "trainer_id=5: expected an integer, at least 0 and less than num_gradient_servers=1"
    assert capsys.readouterr().err == f"parallax_runner: {expected}\n"
    assert stood_by == []
