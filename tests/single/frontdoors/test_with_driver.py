"""Processes that are started beside this one."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from parallax_runner.frontdoors.with_driver import start_beside


def test_a_process_outlives_the_thread_that_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends such a process with the thread that has started it."""
    (tmp_path / "waits.py").write_text("import time\n\nopen('begun', 'w').close()\ntime.sleep(60)\n")
    monkeypatch.chdir(tmp_path)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.append(start_beside("waits", []))
        deadline = time.monotonic() + 30
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (process,) = started
    time.sleep(0.3)
    assert process.poll() is None
    process.terminate()
    assert process.wait() != 0
