"""`parallax.log` in a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import parallax_runner as parallax

for level in ("debug", "info", "warning", "error"):
    getattr(parallax.log, level)("this is %s", level)
"""


def said_with(level: str | None) -> list[str]:
    """Returns the last words of the lines that a script logs with this PARALLAX_LOG_LEVEL."""
    environ = {name: value for name, value in os.environ.items() if name != "PARALLAX_LOG_LEVEL"}
    environ |= {"PYTHONPATH": str(ROOT)} | ({} if level is None else {"PARALLAX_LOG_LEVEL": level})
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return [line.rpartition(": this is ")[2] for line in done.stderr.splitlines()]


@pytest.mark.parametrize(
    ("level", "least"), [("DEBUG", 0), ("10", 0), (None, 1), ("loud", 1), ("info", 1), ("WARNING", 2), ("40", 3)]
)
def test_the_variable_sets_the_level(level: str | None, least: int) -> None:
    assert said_with(level) == ["debug", "info", "warning", "error"][least:]
