"""Asking the hosts before a run: remote shells that answer, complain, lie and say nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch import host_checks
from parallax_runner.launch.host_checks import check_hosts
from parallax_runner.launch.hosts import Hosts, Place
from parallax_runner.launch.remote import check_command, passed_on, start_command

Shell = Callable[[str], Hosts]
LIKE_SSH = 'shift; exec sh -c "$*"'


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Gives hosts whose remote shell is a script: $1 is the host, the rest the command."""

    def make(script: str) -> Hosts:
        path = tmp_path / "shell"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        places = (Place("localhost", 1, True), Place("good", 1, False), Place("other", 1, False))
        return Hosts(places, str(path), "127.0.0.1", None)

    return make


def test_all_is_well_and_nothing_is_left(shell: Shell, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    names = check_hosts(shell(LIKE_SSH), [run_dir, run_dir])
    assert set(names.values()) == {socket.gethostname()}
    assert list(run_dir.iterdir()) == []


def test_a_login_that_greets(shell: Shell, tmp_path: Path) -> None:
    greeted = tmp_path / "greeted"
    check_hosts(shell(f'echo "Welcome to $1" | tee -a {greeted}; {LIKE_SSH}'), [tmp_path])
    assert sorted(greeted.read_text().splitlines()) == ["Welcome to good", "Welcome to other"]


def message(hosts: Hosts, folder: Path) -> str:
    with pytest.raises(LaunchError) as raised:
        check_hosts(hosts, [folder])
    return str(raised.value)


def test_a_host_that_cannot_be_reached(shell: Shell, tmp_path: Path) -> None:
    hosts = shell(
        f'[ "$1" = good ] || {{ echo "connect to host $1 port 22: No route to host" >&2; exit 255; }}; {LIKE_SSH}'
    )
    told = message(hosts, tmp_path)
    assert "host 'other' in cluster.resource_info cannot be reached: connect to host other port 22: No route" in told
    assert f"expected «{hosts.remote_shell} other true» to work without a prompt" in told


def test_a_host_that_does_not_answer(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "ANSWER_SECS", 1.0)
    assert "host 'good' in cluster.resource_info cannot be reached: no answer within 1 s" in message(
        shell("exec sleep 60"), tmp_path
    )


def test_an_interrupt_is_not_waited_for(shell: Shell, tmp_path: Path) -> None:
    started = time.monotonic()
    check_hosts(shell("exec sleep 60"), [tmp_path], lambda: time.monotonic() > started + 0.2)
    assert time.monotonic() < started + host_checks.ANSWER_SECS


def test_a_host_without_the_installation(shell: Shell, tmp_path: Path) -> None:
    told = message(shell('echo "sh: python: not found" >&2; exit 127'), tmp_path)
    assert f"host 'good' in cluster.resource_info cannot start {sys.executable}: sh: python: not found" in told


def test_a_run_dir_that_is_not_shared(shell: Shell, tmp_path: Path) -> None:
    """The host sees another folder where this machine has its own: here the token is taken away before it looks."""
    told = message(shell(f"rm -f {tmp_path}/.seen-by-all-hosts-*; {LIKE_SSH}"), tmp_path)
    assert f"host 'good' in cluster.resource_info does not see the files that this machine writes to {tmp_path}" in told
    assert "hydra.run.dir=" in told


def test_a_folder_that_the_host_cannot_write_to(shell: Shell, tmp_path: Path) -> None:
    answer = {"host": "good", "unseen": [], "unwritable": [f"{tmp_path}/.seen"], "has_cwd": True, "control": None}
    told = message(shell(f"echo '{json.dumps(answer)}'"), tmp_path)
    assert f"host 'good' in cluster.resource_info cannot write to {tmp_path}: its processes write logs" in told


def test_a_host_tells_what_it_cannot_write_to() -> None:
    """Nobody can write to the folder of the kernel's processes."""
    assert ask(Path("/proc/1/task"), 9)["unwritable"] == ["/proc/1/task"]


def test_a_folder_that_is_not_there(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks.os, "getcwd", lambda: "/no/such/folder")
    assert "has no folder /no/such/folder: start the run in a folder" in message(shell(LIKE_SSH), tmp_path)


def test_a_wall_between(shell: Shell, tmp_path: Path) -> None:
    answer = json.dumps({"host": "good", "unseen": [], "unwritable": [], "has_cwd": True, "control": "timed out"})
    told = message(shell(f"echo '{answer}'"), tmp_path)
    assert "host 'good' in cluster.resource_info cannot connect to this machine at 127.0.0.1: timed out" in told


def test_a_host_says_whether_it_reaches_the_driver(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert ask(tmp_path, port)["control"] is None
    assert "refused" in str(ask(tmp_path, port)["control"])


def ask(folder: Path, port: int) -> dict[str, object]:
    command = check_command("sh -c", "", tokens=[str(folder)], cwd="/nowhere", driver=("127.0.0.1", port))
    done = subprocess.run(["sh", "-c", command.argv[-1]], input=command.said, capture_output=True, check=True)
    told = json.loads(done.stdout)
    assert (told["unseen"], told["has_cwd"]) == ([str(folder)], False)
    return told


def test_the_whole_command_of_a_server(tmp_path: Path) -> None:
    argv, said = start_command(
        "ssh -p 2222",
        "there.example",
        argv=["python", "-m", "server", "/runs/a b"],
        env={"PARALLAX_CONTROL_SECRET": "abc"},
        cwd=str(tmp_path),
    )
    assert argv[:4] == ["ssh", "-p", "2222", "there.example"]
    [command] = argv[4:]
    assert command.startswith(f"{sys.executable} -I -S ") and command.endswith("/launch/on_host.py start")
    # A process list shows commands to all users of a machine.
    assert "abc" not in " ".join(argv) and b"abc" in said


def test_a_command_starts_in_its_folder_with_its_variables(tmp_path: Path) -> None:
    program = "import os; print(os.getcwd(), os.environ['OURS'])"
    argv, said = start_command(
        "sh -c", "", argv=[sys.executable, "-c", program], env={"OURS": "x y"}, cwd=str(tmp_path)
    )
    done = subprocess.run(["sh", "-c", argv[-1]], input=said, capture_output=True, check=True)
    assert done.stdout.decode().split(maxsplit=1) == [str(tmp_path), "x y\n"]


def test_what_goes_to_another_host() -> None:
    environ = {
        "PYTHONPATH": "/p",
        "HOROVOD_X": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "NVIDIA_VISIBLE_DEVICES": "0",
        "XDG_CACHE_HOME": "/c",
        "CUDA_VISIBLE_DEVICES": "0",
        "PATH": "/bin",
        "PARALLAX_RENDEZVOUS_SECRET": "0123456789abcdef",
        "PARALLAX_REDIS_PASSWORD": "password",
        "TF_CONFIG": "{}",
    }
    assert list(passed_on(environ)) == ["PYTHONPATH", "HOROVOD_X", "NVIDIA_TF32_OVERRIDE", "XDG_CACHE_HOME"]
    assert set(passed_on()) <= set(os.environ)
