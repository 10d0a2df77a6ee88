"""Which process of a run a process is, by TF_CONFIG or by the flags of ClusterSpec's examples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parallax_runner.errors import ConfigError
from parallax_runner.frontdoors import entry
from parallax_runner.frontdoors.cluster_spec import ClusterSpec
from parallax_runner.frontdoors.door import Task
from parallax_runner.frontdoors.tf_config import TfConfig
from parallax_runner.launch.launchers.manual import secret

WORKERS, SERVERS = ["a:1", "b:2"], ["c:3"]
FLAGS = ("--worker_hosts=a:1,b:2", "--ps_hosts=c:3")


def of_flags(*argv: str) -> Task | None:
    return ClusterSpec.task("worker", entry._parser("worker", [ClusterSpec]).parse_args(argv), {})


def of_variable(content: Any) -> Task | None:
    text = content if isinstance(content, str) else json.dumps(content)
    return TfConfig.task("worker", entry._parser("worker", []).parse_args([]), {"TF_CONFIG": text})


def config(kind: str, index: Any = 0, **cluster: Any) -> dict[str, Any]:
    return {"cluster": cluster or {"worker": WORKERS, "ps": SERVERS}, "task": {"type": kind, "index": index}}


def test_flags() -> None:
    assert of_flags() is None
    assert of_flags(*FLAGS, "--job_name=worker", "--task_index=1") == Task("worker", 1, "tcp://a:1", 2, 1)
    assert of_flags(*FLAGS, "--job_name=ps", "--task_index=0") == Task("server", 0, "tcp://a:1", 2, 1)
    assert of_flags(FLAGS[0], "--job_name=worker", "--task_index=0", "--ps_hosts=") == Task(
        "worker", 0, "tcp://a:1", 2, 0
    )


@pytest.mark.parametrize(
    ("argv", "wrong"),
    [
        (["--job_name=worker"], "--task_index, --worker_hosts missing"),
        ([*FLAGS, "--job_name=chief", "--task_index=0"], "--job_name=chief: expected --job_name=worker or ps"),
        (
            [*FLAGS, "--job_name=ps", "--task_index=1"],
            "--task_index=1: expected a number, at least 0 and less than 1, the number of hosts in --ps_hosts",
        ),
        (
            [*FLAGS, "--job_name=worker", "--task_index=-1"],
            "--task_index=-1: expected a number, at least 0 and less than 2",
        ),
        (["--job_name=worker", "--task_index=0", "--worker_hosts=a"], "--worker_hosts: 'a': expected host:port"),
    ],
)
def test_wrong_flags(argv: list[str], wrong: str) -> None:
    with pytest.raises(ConfigError) as raised:
        of_flags(*argv)
    assert wrong in str(raised.value)


def test_the_variable() -> None:
    assert TfConfig.task("worker", entry._parser("worker", []).parse_args([]), {}) is None
    assert of_variable(config("worker", 1)) == Task("worker", 1, "tcp://a:1", 2, 1)
    assert of_variable(config("ps", "0")) == Task("server", 0, "tcp://a:1", 2, 1)
    assert of_variable(config("worker", chief=["d:4"], worker=WORKERS)) == Task("worker", 1, "tcp://d:4", 3, 0)
    for chief in ("chief", "master"):
        task = of_variable(config(chief, **{"worker": WORKERS, chief: ["d:4"]}))
        assert task == Task("worker", 0, "tcp://d:4", 3, 0)
        assert task is not None and task.starts_driver


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("{", "not JSON (Expecting property name"),
        ({}, "it has no cluster"),
        ([], "it has no cluster"),
        ({"cluster": {"worker": WORKERS}}, "it has no task type"),
        (config("trainer"), "the task's type is 'trainer'; known types are chief, master, worker, ps"),
        (config("evaluator"), "a separate evaluator process is not supported"),
        (config("worker", 2), "the task's index is 2, but the number of worker addresses in the cluster is 2"),
        (config("worker", -1), "the task's index is -1"),
        (config("chief"), "the task's index is 0, but the number of chief addresses in the cluster is 0"),
        (config("worker", worker="a:1"), "the cluster's worker is 'a:1', not a list of addresses"),
        (config("worker", worker=WORKERS, trainer=["d:4"]), "the cluster has a job 'trainer'"),
        (config("chief", chief=["a:1", "b:1"]), "more than one chief"),
        (config("ps", ps=SERVERS), "its cluster has no worker"),
        (config("worker", worker=["a"]), "the cluster's worker: 'a': expected host:port"),
    ],
)
def test_a_wrong_variable(content: Any, wrong: str) -> None:
    with pytest.raises(ConfigError) as raised:
        of_variable(content)
    assert str(raised.value).startswith("TF_CONFIG: ")
    assert wrong in str(raised.value)


def test_what_is_wrong_is_said_once_and_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*argv: str) -> str:
        assert entry.start("worker", argv) in (1, 2)
        return capsys.readouterr().err

    monkeypatch.delenv(secret.VARIABLE, raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert said() == (
        "parallax_runner.worker: --rendezvous is missing: expected file:///shared/folder, tcp://host:port or "
        "redis://host:port/prefix; or set another system's options (--help) or TF_CONFIG\n"
    )
    assert "Pass settings to the driver" in said("--rendezvous=file:///meet", "train.steps=3")
    assert said(*FLAGS, "--job_name=worker", "--task_index=0").count("PARALLAX_RENDEZVOUS_SECRET is not set") == 1
    assert "already identify this process" in said(*FLAGS, "--job_name=worker", "--task_index=0", "--rank=0")
    assert "--task_indx=0: there is no such option. Did you mean --task_index?" in said(*FLAGS, "--task_indx=0")
    monkeypatch.setenv("TF_CONFIG", "{")
    assert said().count("\n") == 1


@pytest.mark.parametrize("role", ["worker", "server"])
def test_role_and_number_are_what_the_other_system_says(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(entry, "stand_by", lambda *told, **_: started.append(told) or 0)
    monkeypatch.setattr(entry, "run_with_driver", lambda *told: started.append(told) or 0)
    monkeypatch.setenv(secret.VARIABLE, "0123456789abcdef")
    monkeypatch.setenv("TF_CONFIG", json.dumps(config("ps")))
    entry.start(role, ["train.steps=3"])
    entry.start(role, [*FLAGS, "--job_name=worker", "--task_index=1"])
    entry.start(role, ["--rendezvous=file:///meet"])
    entry.start(role, [*FLAGS, "--job_name=worker", "--task_index=0", "-m", "train.steps=3", "--address=1.2.3.4"])
    assert started == [
        ("server", "tcp://a:1", 0),
        ("worker", "tcp://a:1", 1),
        (role, "file:///meet", None),
        (
            [
                *("cluster=manual", "cluster.rendezvous=tcp://a:1", "cluster.workers=2", "cluster.servers=1"),
                *("-m", "train.steps=3"),
            ],
            ["--rendezvous=tcp://a:1", "--timeout-secs=600", "--rank=0", "--address=1.2.3.4"],
        ),
    ]
