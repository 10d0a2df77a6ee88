"""Records tests unit by unit: a folder of tests/single, or one file of tests that launch, in one pytest process.

What is recorded stays, so that a recording can be stopped and continued; a unit whose tests have changed is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

from tests.mutation import record
from tests.mutation.places import FOLDER, RAW, RECORD, ROOT

PACKAGE = ROOT / "parallax_runner"
# Each process reads this file when it starts, so that it finds the context in its own environment.
CONFIGURATION = """\
[run]
include = {package}/*
data_file = {data_file}
parallel = true
core = ctrace
context = ${{{context}}}
patch = _exit
disable_warnings = no-data-collected, module-not-measured, module-not-imported, already-imported, trace-changed
"""
PLUGIN = "tests.mutation.record"
COMPLETE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
UNITS_AT_ONCE = 2  # a test waits most of the time for processes that import TensorFlow


@dataclass(frozen=True)
class Unit:
    """Test files that one pytest process runs, in alphabetical order."""

    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the unit's folder in the record."""
        first = Path(self.files[0])
        return str(first.parent if _is_quick(first) else first).replace("/", "__")

    @property
    def digest(self) -> str:
        """Changes when a test file does."""
        return hashlib.sha256(b"\0".join((ROOT / file).read_bytes() for file in self.files)).hexdigest()

    @property
    def is_recorded(self) -> bool:
        """Whether the record has the tests as they are."""
        known = RECORD / self.name / "unit.json"
        return known.exists() and json.loads(known.read_text())["digest"] == self.digest


def units_of(paths: Iterable[str]) -> list[Unit]:
    """All units with a test file among these files and folders."""
    files: set[Path] = set()
    for path in paths:
        folder = (ROOT / path).resolve()
        files |= {folder} if folder.is_file() else set(folder.rglob("test_*.py"))
    together = defaultdict(list)
    for file in sorted(file.relative_to(ROOT) for file in files):
        together[file.parent if _is_quick(file) else file].append(str(file))
    return [Unit(tuple(every)) for every in together.values()]


def _is_quick(file: Path) -> bool:
    return file.is_relative_to("tests/single")


def record_units(units: Iterable[Unit]) -> None:
    """Records those units that are not recorded yet; prints one line for each."""
    todo = [unit for unit in units if not unit.is_recorded]
    with ThreadPoolExecutor(UNITS_AT_ONCE) as pool:
        for unit, said in zip(todo, pool.map(_record, todo), strict=True):
            print(f"{unit.name}: {said}", flush=True)


def _record(unit: Unit) -> str:
    """Runs the unit's tests; returns pytest's last line."""
    raw = RAW / unit.name
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    configuration = raw / "coverage.ini"
    configuration.write_text(CONFIGURATION.format(package=PACKAGE, data_file=raw / "data", context=record.CONTEXT))
    sources = _keep_sources()
    environment = os.environ | {
        "COVERAGE_PROCESS_START": str(configuration),
        record.CONTEXT: "",
        record.TESTS: str(raw / "tests.json"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *unit.files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    (raw / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode not in COMPLETE:  # stopped, or a file cannot be collected
        return f"not recorded, see {raw / 'output.txt'}"
    _combine(raw)
    known = {"digest": unit.digest, "sources": sources, **json.loads((raw / "tests.json").read_text())}
    (raw / "unit.json").write_text(json.dumps(known))
    RECORD.mkdir(exist_ok=True)
    shutil.rmtree(RECORD / unit.name, ignore_errors=True)
    raw.rename(RECORD / unit.name)
    return done.stdout.strip().splitlines()[-1]


def _combine(raw: Path) -> None:
    """Makes `raw/lines` of the data of all processes; what a killed process left half written is passed over."""
    combined = coverage.CoverageData(basename=str(raw / "lines"))
    for path in sorted(raw.glob("data.*")):
        data = coverage.CoverageData(basename=str(path))
        try:
            data.read()
            combined.update(data)
        except coverage.exceptions.CoverageException:
            print(f"{path.name}: not readable, passed over", file=sys.stderr)
        data.close()
        path.unlink()
    combined.close()


def _keep_sources() -> dict[str, str]:
    """Keeps the text of every module, since line numbers hold only for it; returns the digests by module."""
    kept = FOLDER / "sources"
    kept.mkdir(parents=True, exist_ok=True)
    digests = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        (kept / digest).write_bytes(text)
        digests[str(path.relative_to(ROOT))] = digest
    return digests
