"""The suite's fixtures, and the table that stands in docs/reliability.md."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.integration.conftest import caches, lm, text

__all__ = ["caches", "lm", "text"]

OUTCOME = "chaos"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was tried, how often, and what happened: a row for each group, as Markdown."""
    passed: Counter[tuple[str, str]] = Counter()
    tried: Counter[tuple[str, str]] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, group in report.user_properties:
                if name == OUTCOME and report.when == "call":
                    tried[tuple(group)] += 1
                    passed[tuple(group)] += outcome == "passed"
    if tried:
        terminalreporter.section("chaos")
        terminalreporter.write_line("| what | when | tried | as promised |\n|---|---|---|---|")
        for (what, when), count in sorted(tried.items()):
            terminalreporter.write_line(f"| {what} | {when} | {count} | {passed[what, when]} |")
        terminalreporter.write_line(f"| all | | {tried.total()} | {passed.total()} |")
