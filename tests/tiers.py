"""Tiers of tests: the default one, and slow tests, which tests/slow.toml lists with the files that they cover."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "slow.toml"
# The time limit of .ci/run for slow tests.
CHANGED_SECS = 3600.0


@dataclass(frozen=True)
class SlowTests:
    """An entry of tests/slow.toml.

    `tests` is a folder, a file, or a node id with or without its parameters; a `*` matches anything. `secs` is the time
    that the tests take on two idle cores. `covers` are paths of files and, with a slash at the end, of folders; it is
    empty for tests that no change selects.
    """

    tests: str
    secs: float
    covers: tuple[str, ...]

    def has(self, node_id: str) -> bool:
        """Returns whether a test belongs to the entry."""
        return self._pattern.fullmatch(node_id) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern = ".*".join(re.escape(part) for part in self.tests.split("*"))
        return re.compile(rf"{pattern}(?:[/:\[].*)?")

    def depends_on(self, path: str) -> bool:
        """Returns whether a change of this file may break the tests."""
        file = self.tests.partition("::")[0]
        covers = (*self.covers, file, f"{file}/")
        return any(path.startswith(each) if each.endswith("/") else path == each for each in covers)


@dataclass(frozen=True)
class Chosen:
    """The tests that a change selects, and those left out because of the time limit."""

    run: tuple[SlowTests, ...]
    left_out: tuple[SlowTests, ...]


def slow_tests() -> list[SlowTests]:
    """Returns the entries of tests/slow.toml."""
    with open(LIST, "rb") as file:
        return [
            SlowTests(entry["tests"], entry["secs"], tuple(entry["covers"])) for entry in tomllib.load(file)["slow"]
        ]


def of_change(entries: Sequence[SlowTests], changed: Iterable[str] | None, limit_secs: float = CHANGED_SECS) -> Chosen:
    """Returns the entries that cover a changed file, the shortest first, within `limit_secs`; all of them if `changed`
    is None."""
    paths = None if changed is None else list(changed)
    asked = [entry for entry in entries if entry.covers and (paths is None or any(map(entry.depends_on, paths)))]
    run, left_out, secs = [], [], 0.0
    for entry in sorted(asked, key=lambda entry: entry.secs):
        secs += entry.secs
        (run if secs <= limit_secs else left_out).append(entry)
    return Chosen(tuple(run), tuple(left_out))


def changed_files() -> list[str] | None:
    """Returns the files that differ from the branch's base on origin/main, including uncommitted ones; None without a
    base."""
    base = _git("merge-base", "origin/main", "HEAD")
    if base is None:
        return None
    differing, new = _git("diff", "--name-only", base.strip()), _git("ls-files", "--others", "--exclude-standard")
    assert differing is not None and new is not None
    return [*differing.splitlines(), *new.splitlines()]


def _git(*arguments: str) -> str | None:
    """Returns git's output, or None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
