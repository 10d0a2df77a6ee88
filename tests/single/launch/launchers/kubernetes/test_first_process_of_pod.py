"""The first process of a pod."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallax_runner.launch.launchers.kubernetes import pod

RUN = """
import sys
from parallax_runner.launch.launchers.kubernetes.pod import FirstProcess
first = FirstProcess()
sys.exit(getattr(first, sys.argv[1])(sys.argv[2:]))
"""


@pytest.mark.parametrize(("index", "role"), [(0, "driver"), (1, "worker"), (2, "worker"), (3, "server"), (4, "server")])
def test_the_index_gives_the_role(index: int, role: str) -> None:
    assert pod.role_of(index, workers=2) == role


def test_the_commands_are_those_of_manual_processes() -> None:
    settings = ["cluster=kubernetes", "train.steps=3"]
    assert pod.command_of("driver", "a-0.a", settings, "10.0.0.1", 9)[1:] == ["-m", "parallax_runner", *settings]
    assert pod.command_of("worker", "a-0.a", settings, "10.0.0.1", 9)[1:] == [
        *("-m", "parallax_runner.worker", "--rendezvous=tcp://a-0.a:7070", "--timeout-secs=inf"),
        *("--leave-secs=9", "--address=10.0.0.1"),
    ]
    assert pod.command_of("server", "a-0.a", settings, None, 9)[2:3] == ["parallax_runner.server"]


@pytest.mark.parametrize("role", [None, "driver"])
def test_the_driver_gets_all_settings(
    monkeypatch: pytest.MonkeyPatch, role: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(pod.INDEX_VARIABLE, "0")
    monkeypatch.setattr(pod.sys, "executable", "/bin/echo")
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    words = [] if role is None else [f"--role={role}"]
    assert pod.main([*words, "--driver=a", "--workers=2", "--leave-secs=9", "--", "a=b c", "--config-dir=x"]) == 0
    assert capfd.readouterr().out == "-m parallax_runner a=b c --config-dir=x\n"


def start(method: str, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", RUN, method, *argv], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_the_exit_status_is_passed_on(script: str, status: int) -> None:
    assert start("run", "sh", "-c", script).wait(10) == status


def test_sigterm_is_passed_on() -> None:
    process = start("run", "sh", "-c", "trap 'exit 7' TERM; echo ready; sleep 60 & wait")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(10) == 7


def test_a_process_stands_by_again_until_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start(
        "run_again_and_again", "sh", "-c", f"echo run >> {log}; [ $(wc -l < {log}) -lt 2 ] || exec sleep 60"
    )
    while not log.exists() or log.read_text() != "run\nrun\n":
        time.sleep(0.02)
    time.sleep(0.2)
    process.terminate()
    assert process.wait(10) == 128 + signal.SIGTERM
    assert log.read_text() == "run\nrun\n"


def test_processes_without_parents_are_collected() -> None:
    """As process 1, it is the parent of all processes whose parents have ended."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if os.geteuid() or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("a namespace of processes needs root")
    script = "(sleep 0.1 &) ; sleep 1; ps -e -o stat= | grep -c Z; exit 4"
    done = subprocess.run(
        [*unshare, sys.executable, "-c", RUN, "run", "sh", "-c", script], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("0\n", 4)
