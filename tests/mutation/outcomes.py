"""A pytest plugin that writes down which test runs, which pass and which fail: a run that hangs can then say where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

OUTCOME = "MUTATION_OUTCOME"


def _write(kind: str, name: str) -> None:
    with Path(os.environ[OUTCOME]).open("a") as file:
        file.write(f"{kind} {name}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Called before a test."""
    _write("start", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called for setup, call and teardown of a test."""
    if report.failed:
        _write("failed", report.nodeid)
    elif report.when == "call" and report.passed:
        _write("passed", report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Called for each file."""
    if report.failed:
        _write("broken", report.nodeid)
