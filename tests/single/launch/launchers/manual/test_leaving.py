"""Processes that are warned before their machine is taken away: they tell the driver, which lets the workers save."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.hosts.cluster import guarded
from parallax_runner.driver.recovery import Restarts
from parallax_runner.driver.report import tell_restart
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.launchers.direct import Direct
from parallax_runner.launch.launchers.launcher import Leaving
from parallax_runner.launch.launchers.manual.channel import Channel
from parallax_runner.launch.launchers.manual.claims import Claims
from parallax_runner.launch.launchers.manual.manual_launcher import Manual
from parallax_runner.launch.processes import RunResult

LEAVE_SECS = 20.0
LEFT = Failure("worker", 0, "n1", "it must end", (), is_leaving=True)


@contextmanager
def standing_by(address: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "parallax_runner.worker", f"--rendezvous={address}", *options]
    process = subprocess.Popen(guarded(argv, signal.SIGKILL))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def start(claims: Claims, script: str, cwd: Path) -> Channel:
    """Starts a shell script in the claimed process."""
    (claim,) = claims._claims.values()
    channel = Channel.connect(claim.entry.address, claims.store.secret)
    channel.send("start", token=claim.token, argv=["sh", "-c", script], env={}, cwd=str(cwd))
    answer = channel.receive(10.0)
    assert answer is not None and answer["kind"] == "started"
    return channel


@pytest.fixture
def manual(tmp_path: Path) -> Manual:
    return Manual(f"file://{tmp_path / 'meet'}", 30.0, "runs/1", 1, 0)


def wait_until_leaving(manual: Manual) -> Leaving:
    deadline = time.monotonic() + 20.0
    while (found := manual.leaving()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_warned_process_tells_the_driver_and_waits_for_its_worker(manual: Manual, tmp_path: Path) -> None:
    address = f"file://{tmp_path / 'meet'}"
    with standing_by(address, f"--leave-secs={LEAVE_SECS}") as process:
        manual.check([], lambda: False)
        assert manual.leaving() is None
        channel = start(manual._claims, "while [ ! -e saved ]; do sleep 0.05; done; exit 5", tmp_path)
        process.terminate()
        leaving = wait_until_leaving(manual)
        assert (leaving.role, leaving.index, leaving.secs) == ("worker", 0, LEAVE_SECS)
        assert process.poll() is None, "its worker saves"
        (tmp_path / "saved").touch()
        assert channel.receive(10.0) == {"kind": "exited", "exit_status": 5}
        assert process.wait(10) == 128 + signal.SIGTERM
        with standing_by(address) as other:
            manual.check([], lambda: False)
            (claim,) = manual._claims._claims.values()
            assert claim.entry.pid == other.pid, "the process that has left is not waited for"
    assert manual.leaving() is None


def test_the_driver_claims_nobody_who_is_leaving(manual: Manual, tmp_path: Path) -> None:
    address = f"file://{tmp_path / 'meet'}"
    with standing_by(address, f"--leave-secs={LEAVE_SECS}") as process:
        manual.check([], lambda: False)
        channel = start(manual._claims, "exec sleep 60", tmp_path)  # as long as it is open, the worker runs
        process.terminate()
        wait_until_leaving(manual)
        assert channel.is_open
        with standing_by(address) as other:
            manual.check([], lambda: False)
            (claim,) = manual._claims._claims.values()
            assert claim.entry.pid == other.pid
        # The driver has given the process up, so its worker ends.
        assert process.wait(10) == 128 + signal.SIGTERM


@pytest.mark.parametrize("options", [(), ("--leave-secs=0.3",)])
def test_a_worker_that_does_not_end_is_ended(manual: Manual, tmp_path: Path, options: tuple[str, ...]) -> None:
    with standing_by(f"file://{tmp_path / 'meet'}", *options) as process:
        manual.check([], lambda: False)
        channel = start(manual._claims, "exec sleep 60", tmp_path)
        process.terminate()
        assert process.wait(15) == 128 + signal.SIGTERM
        assert channel.receive(10.0) in (None, {"kind": "exited", "exit_status": -signal.SIGTERM})


def test_a_second_signal_ends_it_at_once(manual: Manual, tmp_path: Path) -> None:
    with standing_by(f"file://{tmp_path / 'meet'}", "--leave-secs=600") as process:
        manual.check([], lambda: False)
        channel = start(manual._claims, "exec sleep 60", tmp_path)  # as long as it is open, the worker runs
        process.terminate()
        wait_until_leaving(manual)
        assert channel.is_open
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(15) == 128 + signal.SIGTERM


def test_one_without_a_worker_leaves_at_once(manual: Manual, tmp_path: Path) -> None:
    with standing_by(f"file://{tmp_path / 'meet'}", "--leave-secs=600") as process:
        manual.check([], lambda: False)
        process.terminate()
        assert process.wait(15) == 128 + signal.SIGTERM


def test_a_departure_is_no_failure_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    restarts, left = Restarts(0), RunResult("failed", 1, LEFT)
    assert restarts.failure_to_retry(left, was_stopped=False) is LEFT
    assert restarts.failure_to_retry(left, was_stopped=True) is None
    restarts.count(LEFT)
    assert (restarts.all, restarts.done) == (1, 0)
    assert Restarts(0, trains=False).failure_to_retry(left, was_stopped=False) is None
    tell_restart(LEFT, step=7, restart=0, max_restarts=0)
    assert capsys.readouterr().err == "worker 0 on n1: it must end; restart from step 7\n"


def test_other_launchers_have_nobody_who_leaves() -> None:
    assert Direct().leaving() is None and Direct().grace_secs == 10.0
