"""A pytest plugin that tells coverage which test executes the lines, also in processes that the test starts.

Lines of a fixture that several tests share get a context of their own, because only the first of these tests sets it
up. Coverage itself is started in every process by its .pth file; `recording.py` sets the environment for that.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

CONTEXT = "MUTATION_CONTEXT"
TESTS = "MUTATION_TESTS"
FIXTURE = "fixture "


class Recorder:
    """Switches contexts, and collects what is known of each test in the process that has the reports."""

    def __init__(self) -> None:
        self._contexts: list[str] = []
        # Per running shared fixture: seconds that fixtures within it took.
        self._inner_secs: list[float] = []
        self._fixture_secs: dict[str, float] = {}
        self._of_test_secs: dict[str, float] = {}
        self._tests: dict[str, dict[str, Any]] = defaultdict(
            lambda: {"secs": 0.0, "passed": False, "failed": False, "fixtures": []}
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """A test's own lines."""
        self._fixture_secs = {}
        self._enter(item.nodeid)
        try:
            return (yield)
        finally:
            self._leave()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """The lines of a fixture that several tests may share."""
        if fixturedef.scope == "function":
            return (yield)
        self._enter(FIXTURE + fixturedef.argname)
        self._inner_secs.append(0.0)
        start = time.monotonic()
        try:
            return (yield)
        finally:
            secs = time.monotonic() - start
            self._fixture_secs[fixturedef.argname] = secs - self._inner_secs.pop()
            if self._inner_secs:
                self._inner_secs[-1] += secs
            self._leave()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, pytest.TestReport]:
        """Adds to each report what the process that collects them has to know."""
        report = yield
        fixtures = list(getattr(item, "fixturenames", ()))
        report.mutation = {"fixtures": fixtures, "fixture_secs": self._fixture_secs if call.when == "setup" else {}}
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for setup, call and teardown of a test; under xdist in the process that starts the others."""
        test, extra = self._tests[report.nodeid], report.mutation
        test["fixtures"] = extra["fixtures"]
        test["secs"] += max(0.0, report.duration - sum(extra["fixture_secs"].values()))
        test["passed"] |= report.when == "call" and report.passed
        test["failed"] |= report.failed
        self._of_test_secs |= extra["fixture_secs"]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the file that `recording.py` reads."""
        if not hasattr(session.config, "workerinput"):
            known = {"tests": self._tests, "fixture_secs": self._of_test_secs}
            Path(os.environ[TESTS]).write_text(json.dumps(known))

    def _enter(self, context: str) -> None:
        self._contexts.append(context)
        _switch(context)

    def _leave(self) -> None:
        self._contexts.pop()
        _switch(self._contexts[-1] if self._contexts else "")


def _switch(context: str) -> None:
    os.environ[CONTEXT] = context  # for processes started from now on
    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(context)


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest in every one of its processes."""
    config.pluginmanager.register(Recorder())
