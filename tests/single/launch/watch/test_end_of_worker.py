"""How a worker's process ends when its work is done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallax_runner.launch.control import wire
from parallax_runner.launch.control.server import ControlServer
from parallax_runner.launch.logs import log_path

BODY = """
import atexit, sys, threading, time
from pathlib import Path
from parallax_runner.launch.control import client; from parallax_runner.launch import child

client.LINGERS_SECS = {lingers_secs}

class Kept:
    def __del__(self):
        print("freed", flush=True)

def late():
    {late}
    print("thread ends")

def body(run_dir, index, client):
    body.kept = Kept()
    atexit.register(print, "handler runs")
    threading.Thread(target=late).start()
    client.done()

child.run_child("worker", 0, Path(sys.argv[1]), body)
"""


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlServer]:
    server = ControlServer(workers=1, servers=0, host="127.0.0.1")
    monkeypatch.setenv(wire.CONTROL_ADDRESS, server.address)
    monkeypatch.setenv(wire.CONTROL_SECRET, server.secret)
    monkeypatch.setenv(wire.ALIVE_SECS, "0.05")
    yield server
    server.close()


def run_worker(run_dir: Path, *, lingers_secs: float = 60.0, late: str = "time.sleep(1.0)") -> tuple[int, str]:
    """The exit status of a worker, whose thread does `late`, and its log."""
    log = log_path(run_dir, "worker", 0)
    log.parent.mkdir()
    code = BODY.format(lingers_secs=lingers_secs, late=late)
    status = subprocess.run([sys.executable, "-c", code, str(run_dir), str(log)], timeout=300).returncode
    return status, log.read_text()


def test_threads_and_handlers_end_and_nothing_is_freed(control: ControlServer, tmp_path: Path) -> None:
    """Freeing a model's graphs takes a worker seconds, on a busy machine more than the driver waits for."""
    assert run_worker(tmp_path) == (0, "thread ends\nhandler runs\n")


def test_the_log_says_what_keeps_a_worker(control: ControlServer, tmp_path: Path) -> None:
    until_said = "while ' in late' not in Path(sys.argv[2]).read_text(): time.sleep(0.05)"
    _, log = run_worker(tmp_path, lingers_secs=0.1, late=until_said)
    assert "Timeout" in log
    assert " in late" in log
