"""Reads the record: which tests execute the lines of a fault, and what each of these tests takes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import coverage

from tests.mutation.faults import Fault
from tests.mutation.record import FIXTURE
from tests.mutation.statements import import_lines, importers, statement_lines

# Of a file, the contexts of every executed line.
LinesOf = Callable[[str], Mapping[int, set[str]]]


class Sources:
    """The text of every module of the package at one time."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    @functools.cached_property
    def importers(self) -> dict[str, set[str]]:
        """By module, the modules that import it."""
        return importers(self.texts)


@dataclass(frozen=True)
class RecordedTest:
    """A test that passed during the recording. `secs` excludes the set-up of shared fixtures."""

    name: str
    unit: str
    secs: float
    fixtures: frozenset[str] = frozenset()
    shared_secs: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def alone_secs(self) -> float:
        """What the test takes where no other has set up its fixtures."""
        return self.secs + sum(self.shared_secs.values())

    @property
    def file(self) -> str:
        """The test's file."""
        return self.name.partition("::")[0]


@dataclass(frozen=True)
class UnitRecord:
    """What one unit of tests executed; `sources` are the package's modules as they were."""

    tests: tuple[RecordedTest, ...]
    left_out: tuple[str, ...]
    sources: Sources
    lines_of: LinesOf

    def tests_of(self, fault: Fault) -> list[RecordedTest]:
        """The tests that execute the fault's lines. Raises ValueError where the module has changed so much since it
        was recorded that its lines are not known."""
        source = self.sources.texts.get(fault.file, "")
        if not fault.is_in(source):
            raise ValueError(f"«{fault.name}»: {fault.file} has changed since it was recorded")
        wanted = statement_lines(source, fault.lines_in(source))
        contexts = self._contexts(fault.file, wanted)
        if "" in contexts or wanted & import_lines(source):
            for file in (fault.file, *self.sources.importers[fault.file]):
                contexts |= self._contexts(file, None)
        return [test for test in self.tests if _executes(test, contexts)]

    def tests_within(self, file: str) -> list[RecordedTest]:
        """The tests that execute a line of a function of a file."""
        contexts = self._contexts(file, None)
        return [test for test in self.tests if _executes(test, contexts)]

    def _contexts(self, file: str, lines: set[int] | None) -> set[str]:
        """Of some lines, or of all lines within functions."""
        known = self.lines_of(file)
        if lines is None:
            lines = set(known) - import_lines(self.sources.texts.get(file, ""))
        return set().union(*(known.get(line, ()) for line in lines))


def _executes(test: RecordedTest, contexts: set[str]) -> bool:
    return test.name in contexts or any(FIXTURE + fixture in contexts for fixture in test.fixtures)


@functools.cache
def _sources(folder: Path, digests: tuple[tuple[str, str], ...]) -> Sources:
    return Sources({file: (folder / digest).read_text(encoding="utf-8") for file, digest in digests})


def load_record(record: Path, sources: Path) -> list[UnitRecord]:
    """All units that are recorded."""
    return [_load(folder, sources) for folder in sorted(record.iterdir()) if (folder / "unit.json").exists()]


def _load(folder: Path, sources: Path) -> UnitRecord:
    known = json.loads((folder / "unit.json").read_text())
    tests = [
        RecordedTest(
            name=name,
            unit=folder.name,
            secs=one["secs"],
            fixtures=frozenset(one["fixtures"]),
            shared_secs={name: secs for name, secs in known["fixture_secs"].items() if name in one["fixtures"]},
        )
        for name, one in known["tests"].items()
        if one["passed"] and not one["failed"]
    ]
    left_out = tuple(name for name, one in known["tests"].items() if one["failed"])
    texts = _sources(sources, tuple(sorted(known["sources"].items())))
    return UnitRecord(tuple(tests), left_out, texts, _reader(folder / "lines", texts.texts))


def _reader(path: Path, files: Iterable[str]) -> LinesOf:
    data = coverage.CoverageData(basename=str(path))
    data.read()
    # Paths in the data are those of the checkout that was recorded.
    paths = {file: one for one in data.measured_files() for file in files if one.endswith(f"/{file}")}

    @functools.cache
    def lines_of(file: str) -> Mapping[int, set[str]]:
        by_line = data.contexts_by_lineno(paths[file]) if file in paths else {}
        return {line: set(contexts) for line, contexts in by_line.items()}

    return lines_of
