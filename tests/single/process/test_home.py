"""The home folder of a run in an environment without one."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from parallax_runner.files.cache import cache_root
from parallax_runner.process.changes import undone
from parallax_runner.process.home import NO_HOME, set_home


def test_a_missing_home_is_set_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    with undone():
        set_home()
        assert os.environ["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
    assert "HOME" not in os.environ


def test_a_home_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/x")
    set_home()
    assert os.environ["HOME"] == "/x"


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without HOME, the cache folder is then unknown."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999)
    with pytest.raises(RuntimeError, match="home directory"):
        cache_root()
    with undone():
        set_home()
        assert cache_root() == Path(NO_HOME, ".cache", "parallax_runner")
