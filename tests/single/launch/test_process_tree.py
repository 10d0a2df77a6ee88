import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from parallax_runner.launch import process_tree
from parallax_runner.launch.process_tree import end_family, find_family

SPAWN = "import subprocess, sys, time; {ignore}subprocess.Popen(['sleep', '60'], start_new_session={own}); {then}"
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, killed processes take longer to exit."""
    monkeypatch.setattr(process_tree, "KILL_SECS", 30.0)


def start(secret: str, *, own: bool = False, then: str = "time.sleep(60)", ignore: str = "") -> subprocess.Popen:
    """A session leader with a grandchild, which has a session of its own if `own`."""
    code = SPAWN.format(own=own, then=then, ignore=ignore)
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={**os.environ, "S": secret})


def wait_for_family(leader: int, secret: str, size: int) -> None:
    deadline = time.monotonic() + 60.0
    while len(find_family([leader], secret)) != size:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("own", [False, True])
def test_grandchildren_end_too_even_orphaned_in_a_session_of_their_own(own: bool) -> None:
    secret = uuid.uuid4().hex
    child = start(secret, own=own, then="sys.exit(3)")
    child.wait(60.0)
    wait_for_family(child.pid, secret, 1)
    end_family([child], secret)
    assert find_family([child.pid], secret) == []
    assert child.returncode == 3


def test_sigterm_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "TERM_SECS", 60.0)
    secret = uuid.uuid4().hex
    child = start(secret)
    wait_for_family(child.pid, secret, 2)
    began = time.monotonic()
    end_family([child], secret)
    assert time.monotonic() - began < process_tree.TERM_SECS
    assert child.returncode == -15


def test_who_ignores_sigterm_is_killed() -> None:
    secret = uuid.uuid4().hex
    child = start(secret, ignore=IGNORE)
    wait_for_family(child.pid, secret, 2)
    end_family([child], secret)
    assert child.returncode == -9
    assert find_family([child.pid], secret) == []


def test_others_are_left_alone() -> None:
    bystander = start(uuid.uuid4().hex)
    try:
        end_family([], uuid.uuid4().hex)
        assert bystander.poll() is None
    finally:
        end_family([bystander], "none")


def test_a_stopped_process_is_killed_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "TERM_SECS", 60.0)
    secret = uuid.uuid4().hex
    child = start(secret)
    wait_for_family(child.pid, secret, 2)
    child.send_signal(signal.SIGSTOP)
    while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    began = time.monotonic()
    end_family([child], secret)
    assert time.monotonic() - began < process_tree.TERM_SECS
    assert child.returncode == -9


def test_a_hurry_ends_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "TERM_SECS", 60.0)
    secret = uuid.uuid4().hex
    child = start(secret, ignore=IGNORE)
    wait_for_family(child.pid, secret, 2)
    began = time.monotonic()
    end_family([child], secret, lambda: time.monotonic() > began + 0.3)
    assert time.monotonic() - began < process_tree.TERM_SECS
    assert child.returncode == -9
