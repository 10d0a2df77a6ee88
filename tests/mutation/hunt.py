"""Runs the tests of one fault, cheapest first, until one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from tests.mutation import outcomes, tree
from tests.mutation.covered import RecordedTest
from tests.mutation.faults import Fault
from tests.mutation.places import FOLDER

QUICK_SECS = 5.0
# pytest starts in some 5 s: enough tests for that to matter little, and few enough to start with the likely ones.
QUICK_TESTS = 60
# A test that takes this many times as long as it took while it was recorded hangs.
HANGS_TIMES, HANGS_SECS = 10, 120
OPTIONS = ("-x", "-q", "-p", "tests.mutation.outcomes", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Ending:
    """How a pytest process ended: the tests that passed, the first that failed, or the one that ran when it took too
    long; `broken` is a file that could not be collected."""

    passed: frozenset[str] = frozenset()
    failed: str | None = None
    hung: str | None = None
    broken: str | None = None


@dataclass(frozen=True)
class Found:
    """The test that finds a fault, and how."""

    by: str
    how: str


class DoesNotImport(Exception):
    """A fault stops pytest before any test runs, so that it shows nothing about tests."""


class Hunter:
    """Looks for faults with tests; remembers which tests pass in the copy, and which fail there without a fault."""

    def __init__(self) -> None:
        self._pass_there: set[str] = set()
        self._fail_there: set[str] = set()

    def hunt(self, fault: Fault, tests: Sequence[RecordedTest]) -> Found | None:
        """The test that finds the fault; None where all pass. Raises DoesNotImport."""
        return next(filter(None, (self._hunt_in(fault, batch) for batch in batches(tests, fault.package))), None)

    def _hunt_in(self, fault: Fault, batch: Sequence[RecordedTest]) -> Found | None:
        while left := [test for test in batch if test.name not in self._fail_there]:
            with tree.broken_by(fault):
                ending = _run(left)
            if ending.broken:
                raise DoesNotImport(f"{ending.broken} cannot be collected with it")
            self._pass_there |= ending.passed
            name = ending.failed or ending.hung
            if name is None:
                return None
            if self._passes_without_fault(name, left):
                return Found(name, "fails" if ending.failed else "hangs")
            print(f"  {name} fails without the fault too, and is left out", flush=True)
            self._fail_there.add(name)
        return None

    def _passes_without_fault(self, name: str, batch: Sequence[RecordedTest]) -> bool:
        """Whether the test passes in the copy; where that was not seen yet, behind the same tests as with the fault."""
        if name not in self._pass_there:
            names = [test.name for test in batch]
            self._pass_there |= _run(batch[: names.index(name) + 1]).passed
        return name in self._pass_there


def batches(tests: Sequence[RecordedTest], package: str) -> Iterator[list[RecordedTest]]:
    """The tests in groups, each for one pytest process: quick ones first, of these the ones in a folder that is named
    as the package, as they find most; then each file of those that launch.

    Within a group tests keep their order, since tests of one file may share a session.
    """
    place = {test.name: number for number, test in enumerate(tests)}
    by_cost = sorted(tests, key=lambda test: (f"/{package}/" not in test.file, test.alone_secs))
    quick = [test for test in by_cost if test.alone_secs < QUICK_SECS]
    for start in range(0, len(quick), QUICK_TESTS):
        yield sorted(quick[start : start + QUICK_TESTS], key=lambda test: place[test.name])
    launching = [test for test in tests if test.alone_secs >= QUICK_SECS]
    files = [list(group) for _, group in groupby(launching, key=lambda test: test.file)]
    yield from sorted(files, key=_total_secs)


def _total_secs(tests: Sequence[RecordedTest]) -> float:
    """What the tests take in one process, where a fixture is set up once."""
    shared = {name: secs for test in tests for name, secs in test.shared_secs.items()}
    return sum(shared.values()) + sum(test.secs for test in tests)


def _run(tests: Sequence[RecordedTest]) -> Ending:
    outcome, arguments = FOLDER / "outcome.txt", FOLDER / "arguments.txt"
    outcome.write_text("")
    arguments.write_text("".join(f"{test.name}\n" for test in tests))
    timeout_secs = HANGS_SECS + HANGS_TIMES * max(test.alone_secs for test in tests)
    command = [str(tree.python()), "-m", "pytest", *OPTIONS, f"--timeout={timeout_secs:.0f}", f"@{arguments}"]
    environment = os.environ | {outcomes.OUTCOME: str(outcome)}
    with (FOLDER / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command, cwd=tree.COPY, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(HANGS_SECS + HANGS_TIMES * _total_secs(tests))
        except subprocess.TimeoutExpired:
            return Ending(frozenset(_every(outcome, "passed")), hung=_last(outcome, "start"))
        finally:
            _end(process)
    if process.returncode == pytest.ExitCode.USAGE_ERROR:
        sys.exit(f"mutate: pytest does not find all tests, see {FOLDER / 'output.txt'}: record them again")
    failed, broken = _last(outcome, "failed"), _last(outcome, "broken")
    if process.returncode and not failed and not broken:  # a crash, or a call of os._exit in a test
        failed = _last(outcome, "start")
        broken = None if failed else "a conftest.py"
    return Ending(frozenset(_every(outcome, "passed")) - {failed}, failed, broken=broken)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends pytest and all that it started, where it still runs."""
    if process.poll() is None:
        every = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        for one in every:
            if one.is_running():
                one.kill()
        process.wait()


def _last(outcome: Path, kind: str) -> str | None:
    """The last test of which the plugin wrote this."""
    names = _every(outcome, kind)
    return names[-1] if names else None


def _every(outcome: Path, kind: str) -> list[str]:
    return [line.partition(" ")[2] for line in outcome.read_text().splitlines() if line.startswith(f"{kind} ")]
