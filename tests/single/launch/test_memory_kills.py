"""The kernel ends processes when memory runs out: what the driver says then."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from parallax_runner.launch.blame import memory_kills
from parallax_runner.launch.blame.first_death import Failure, Member
from parallax_runner.launch.blame.memory_kills import MemoryKills

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


def test_a_process_that_the_kernel_ended_is_said_to_be_so_with_what_it_used(proc: Path) -> None:
    watch = MemoryKills(proc)
    watch.look_at([Member("worker", 1, host=HERE, pid=7)])
    set_count(proc, 5)
    told = str(watch.explained(killed()))
    assert "killed by signal 9 (SIGKILL), and the kernel of this machine has ended processes" in told
    assert "It had used 2.05 GB." in told and "action=plan predicts the memory" in told


@pytest.mark.parametrize(
    ("failure", "count"),
    [(killed(), 4), (killed(status=-signal.SIGTERM), 5), (killed(status=1), 5), (killed(host="other"), 5)],
)
def test_without_evidence_nothing_is_claimed(failure: Failure, count: int, proc: Path) -> None:
    watch = MemoryKills(proc)
    set_count(proc, count)
    assert watch.explained(failure) is failure


def test_a_system_without_these_files_claims_nothing(tmp_path: Path) -> None:
    watch = MemoryKills(tmp_path)
    watch.look_at([Member("worker", 1, host=HERE, pid=7)])
    failure = killed()
    assert watch.explained(failure) is failure


def test_processes_are_not_looked_at_all_the_time(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_kills, "BETWEEN_SECS", 60.0)
    watch = MemoryKills(proc)
    watch.look_at([])
    watch.look_at([Member("worker", 1, host=HERE, pid=7)])
    set_count(proc, 5)
    assert "It had used" not in str(watch.explained(killed()))


def test_the_memory_of_this_process_is_found() -> None:
    watch = MemoryKills()
    watch.look_at([Member("worker", 0, host=HERE, pid=os.getpid())])
    assert watch._peaks_bytes["worker", 0] > 10 << 20
