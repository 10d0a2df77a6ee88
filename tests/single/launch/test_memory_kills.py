"""The kernel ends processes when memory runs out: what the driver says then."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.launch import on_host
from parallax_runner.launch.blame import memory_kills
from parallax_runner.launch.blame.first_death import Failure, Member
from parallax_runner.launch.blame.memory_kills import MemoryKills
from parallax_runner.launch.host_checks import memory_kills_on

HERE = socket.gethostname()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A folder with the files of the kernel that are read."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tpython\nVmHWM:\t 2000000 kB\n")
    set_count(tmp_path, 4)
    return tmp_path


def set_count(proc: Path, count: int) -> None:
    (proc / "vmstat").write_text(f"pgfault 12\noom_kill {count}\n")


def killed(host: str = HERE, status: int | None = -signal.SIGKILL) -> Failure:
    return Failure("worker", 1, host, "killed by signal 9 (SIGKILL)", (), pid=7, exit_status=status)


def worker(host: str = HERE, **known: Any) -> Member:
    return Member("worker", 1, host=host, pid=7, **known)


def cannot_ask(host: str) -> None:
    return None


def test_a_process_that_the_kernel_ended_is_said_to_be_so_with_what_it_used(proc: Path) -> None:
    watch, member = MemoryKills(cannot_ask, proc), worker()
    watch.look_at([member])
    set_count(proc, 5)
    told = str(watch.explained(killed(), member))
    assert "killed by signal 9 (SIGKILL), and the kernel of this machine has ended processes" in told
    assert "It had used 2.05 GB." in told and "action=plan predicts the memory" in told


@pytest.mark.parametrize(
    ("failure", "count"),
    [(killed(), 4), (killed(status=-signal.SIGTERM), 5), (killed(status=1), 5), (killed(host="other"), 5)],
)
def test_without_evidence_nothing_is_claimed(failure: Failure, count: int, proc: Path) -> None:
    watch = MemoryKills(cannot_ask, proc)
    set_count(proc, count)
    assert watch.explained(failure, worker(failure.host, memory_kills=4)) is failure


def test_another_host_is_asked_once(proc: Path) -> None:
    asked: list[str] = []

    def count_on(host: str) -> int:
        asked.append(host)
        return 10

    watch, member = MemoryKills(count_on, proc), worker("h2", memory_kills=9, peak_bytes=3 << 30)
    for _ in range(2):
        told = str(watch.explained(killed("h2"), member))
        assert "worker 1 on h2: killed by signal 9 (SIGKILL), and the kernel of h2 has ended processes" in told
        assert "It had used 3.22 GB." in told
    assert asked == ["h2"]


@pytest.mark.parametrize(("before", "after"), [(10, 10), (None, 10), (9, None)])
def test_without_evidence_nothing_is_claimed_of_another_host(before: int | None, after: int | None, proc: Path) -> None:
    watch, failure = MemoryKills(lambda host: after, proc), killed("h2")
    set_count(proc, 5)
    assert watch.explained(failure, worker("h2", memory_kills=before)) is failure


def test_a_process_that_was_lost_on_another_host_may_have_been_killed(proc: Path) -> None:
    watch = MemoryKills(lambda host: 10, proc)
    member = worker("h2", memory_kills=9, is_gone=True)
    assert "the kernel of h2 has ended processes" in str(watch.explained(killed("h2", status=255), member))


def test_a_system_without_these_files_claims_nothing(tmp_path: Path) -> None:
    watch = MemoryKills(cannot_ask, tmp_path)
    watch.look_at([worker()])
    failure = killed()
    assert watch.explained(failure, worker()) is failure


def test_processes_are_not_looked_at_all_the_time(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_kills, "BETWEEN_SECS", 60.0)
    watch, member = MemoryKills(cannot_ask, proc), worker()
    watch.look_at([])
    watch.look_at([member])
    assert member.peak_bytes is None


def test_the_memory_of_this_process_is_found() -> None:
    member = Member("worker", 0, host=HERE, pid=os.getpid())
    MemoryKills(cannot_ask).look_at([member])
    assert member.peak_bytes is not None and member.peak_bytes > 10 << 20


def test_a_host_answers_by_the_remote_shell(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    shell.chmod(0o755)
    assert memory_kills_on("h2", str(shell)) == on_host.memory_kills()
    assert memory_kills_on("h2", "false") is None
