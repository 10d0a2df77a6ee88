"""What a run changes in the user's process, and how the process is afterwards."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path

import pytest

from parallax_runner.launch.logs import LogFile
from parallax_runner.process import terminal
from parallax_runner.process.changes import set_default, set_level, undone
from parallax_runner.process.stage_times import log_to

NAME = "PARALLAX_OF_THIS_TEST"


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the user has set, before or in the meantime, keeps the user's value."""
    monkeypatch.delenv(NAME, raising=False)
    with undone():
        set_default(NAME, "ours")
        assert os.environ[NAME] == "ours"
    assert NAME not in os.environ
    with undone():
        set_default(NAME, "ours")
        os.environ[NAME] = "mine"
    assert os.environ[NAME] == "mine"
    with undone():
        set_default(NAME, "ours")
        assert os.environ[NAME] == "mine"


def test_changes_stay_in_a_process_of_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "")
    monkeypatch.delenv(NAME)
    set_default(NAME, "ours")
    assert os.environ[NAME] == "ours"


def test_loggers(tmp_path: Path) -> None:
    """The user's handlers get no line of the run, but remain open."""
    package, other = logging.getLogger("parallax_runner"), logging.getLogger("of_this_test")
    text = io.StringIO()
    own = logging.StreamHandler(text)
    before = list(package.handlers), package.level, package.propagate
    package.handlers[:] = [own]
    try:
        with pytest.raises(ValueError), undone():
            set_level("of_this_test", logging.ERROR)
            log_to(handler := LogFile(tmp_path / "driver.log"))
            package.info("a line of the run")
            assert package.handlers == [handler] and other.level == logging.ERROR
            raise ValueError
        assert (package.handlers, package.level, package.propagate) == ([own], before[1], before[2])
        assert other.level == logging.NOTSET and text.getvalue() == "" and handler.stream is None
        assert "a line of the run" in (tmp_path / "driver.log").read_text()
    finally:
        package.handlers[:] = before[0]


def test_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stream that the user's code sets in the meantime stays."""
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        for name, stream in (("stdout", out), ("stderr", err)):
            monkeypatch.setattr(sys, name, stream)
            monkeypatch.setattr(sys, f"__{name}__", stream)
        monkeypatch.setattr(terminal, "_is_own", lambda stream, descriptor: stream in (out, err))
        mine = io.StringIO()
        with undone():
            terminal.keep_going()
            assert sys.stdout is not out and sys.stderr is not err
            monkeypatch.setattr(sys, "stderr", mine)
        assert (sys.stdout, sys.__stdout__, sys.stderr) == (out, out, mine)
