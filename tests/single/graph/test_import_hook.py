"""Modules are patched when they are imported for the first time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.graph.import_hook import patched_on_import


def test_only_imports_within_the_block_are_patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("imported_before", "imported_within", "imported_after"):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    patched: list[str] = []

    def change(module: Any) -> None:
        patched.append(module.__name__)
        module.value += 1

    finders = list(sys.meta_path)
    __import__("imported_before")
    with patched_on_import(dict.fromkeys(("imported_before", "imported_within", "imported_after"), change)):
        within = __import__("imported_within")
        __import__("imported_within")
    after = __import__("imported_after")
    assert (patched, within.value, after.value) == (["imported_within"], 2, 1)
    assert sys.meta_path == finders
