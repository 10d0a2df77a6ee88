"""docs/browsing.md shows the pictures that are there, and no others are there."""

from __future__ import annotations

import re

from tests.e2e.recorded_sweep import PAGE

MAX_BYTES = 200_000


def test_every_picture_is_shown_and_small() -> None:
    shown = {PAGE.parent / path for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))}
    there = set((PAGE.parent / "screenshots").iterdir())
    assert shown == there != set()
    assert {path.name for path in there if path.stat().st_size > MAX_BYTES} == set()


def test_every_picture_is_taken() -> None:
    source = (PAGE.parents[1] / "tests" / "e2e" / "test_browser.py").read_text(encoding="utf-8")
    taken = re.findall(r'screenshots\.take\(page, "(\w+)"', source)
    assert taken
    assert sorted(taken) == sorted(path.stem for path in (PAGE.parent / "screenshots").iterdir())
