"""Which tests count: all, or those of the default tier."""

from __future__ import annotations

import subprocess
import sys

from tests.mutation.places import ROOT

TIERS = ("default", "all")


def tests_of(tier: str) -> frozenset[str] | None:
    """The tests of a tier; None stands for every test. Until tests/slow.toml exists, every test is in each tier."""
    if tier == "all" or not (ROOT / "tests" / "slow.toml").exists():
        return None
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--tier", tier, "tests"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return frozenset(line for line in listed.splitlines() if "::" in line)
