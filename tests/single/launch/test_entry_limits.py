"""The start of a process of a run at a limit of its user."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient


def test_a_process_that_cannot_start_a_thread_names_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its connection to the driver needs a thread, so only its exit and its output can tell."""

    def connect(role: str, index: int) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("resource.getrlimit", lambda number: (40, 40))
    monkeypatch.setattr(ControlClient, "connect", connect)
    with pytest.raises(SystemExit, match=r"parallax_runner: .*new thread; .* at most 40 \(ulimit -u\)"):
        run_child("worker", 0, tmp_path, lambda *_: None)
