"""Whether data are what they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parallax_runner.data.file_state import state_of


def test_it_changes_with_the_files_and_with_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, cache = tmp_path / "corpus", tmp_path / "cache"
    for folder in (corpus, cache):
        folder.mkdir()
    (corpus / "a.txt").write_text("a")
    data = {"path": str(corpus), "validation_path": None, "cache_dir": str(cache), "vocab_size": 5}
    before = state_of(data)
    (cache / "of another corpus").write_text("b")
    assert state_of(data) == before
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_of(data | {"path": "~/corpus"}) == before
    os.utime(corpus / "a.txt", ns=(1, 1))
    touched = state_of(data)
    assert touched != before
    (corpus / "b.txt").write_text("b")
    assert state_of(data) not in (before, touched)
    assert state_of(data | {"validation_path": str(corpus / "a.txt")}) != state_of(data)
    assert state_of({"path": str(tmp_path / "none")}) == [[]]
