"""Tiers of tests: the default one, and slow tests, which tests/slow.toml lists with the files that they cover."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "slow.toml"
# What .ci/run spends on slow tests at most.
CHANGED_SECS = 3600.0


@dataclass(frozen=True)
class SlowTests:
    """An entry of tests/slow.toml.

    `tests` is a folder, a file, or a node id with or without its parameters; a `*` in it stands for anything. `secs` is
    how long they take on two idle cores. `covers` are paths of files and, with a slash at the end, of folders; none for
    tests that no change asks for.
    """

    tests: str
    secs: float
    covers: tuple[str, ...]

    def has(self, node_id: str) -> bool:
        """Whether a test is one of them."""
        pattern = ".*".join(re.escape(part) for part in self.tests.split("*"))
        return re.fullmatch(rf"{pattern}(?:[/:\[].*)?", node_id) is not None

    def depends_on(self, path: str) -> bool:
        """Whether a change of this file may break them."""
        file = self.tests.partition("::")[0]
        covers = (*self.covers, file, f"{file}/")
        return any(path.startswith(each) if each.endswith("/") else path == each for each in covers)


@dataclass(frozen=True)
class Chosen:
    """What a change asks for, and what of it would take too long."""

    run: tuple[SlowTests, ...]
    left_out: tuple[SlowTests, ...]


def slow_tests() -> list[SlowTests]:
    """The entries of tests/slow.toml."""
    with open(LIST, "rb") as file:
        return [
            SlowTests(entry["tests"], entry["secs"], tuple(entry["covers"])) for entry in tomllib.load(file)["slow"]
        ]


def of_change(entries: Sequence[SlowTests], changed: Iterable[str] | None, limit_secs: float = CHANGED_SECS) -> Chosen:
    """The entries that cover a changed file, the short ones first, as far as `limit_secs` goes; all where `changed` is
    None."""
    paths = None if changed is None else list(changed)
    asked = [entry for entry in entries if entry.covers and (paths is None or any(map(entry.depends_on, paths)))]
    run, left_out, secs = [], [], 0.0
    for entry in sorted(asked, key=lambda entry: entry.secs):
        secs += entry.secs
        (run if secs <= limit_secs else left_out).append(entry)
    return Chosen(tuple(run), tuple(left_out))


def changed_files() -> list[str] | None:
    """Files that differ from those of the branch's base on origin/main, also uncommitted; None without such a base."""
    base = _git("merge-base", "origin/main", "HEAD")
    if base is None:
        return None
    differing, new = _git("diff", "--name-only", base.strip()), _git("ls-files", "--others", "--exclude-standard")
    assert differing is not None and new is not None
    return [*differing.splitlines(), *new.splitlines()]


def _git(*arguments: str) -> str | None:
    """What git says; None where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
