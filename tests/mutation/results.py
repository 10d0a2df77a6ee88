"""What was found so far, in a file of JSON lines, and the table of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutation.faults import Fault


@dataclass(frozen=True)
class Result:
    """One fault, tried with the tests whose names `tried` is the digest of."""

    fault: str
    digest: str
    tried: str
    found: bool
    by: str | None
    how: str
    secs: float


def digest_of(tests: Iterable[str]) -> str:
    """Changes with the set of tests."""
    return hashlib.sha256("\0".join(sorted(tests)).encode()).hexdigest()


class Results:
    """The results in a file, which grows by one line a fault, so that a stop loses at most one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._all = [Result(**json.loads(line)) for line in lines]

    def add(self, result: Result) -> None:
        """Appends a result."""
        self._all.append(result)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")

    def of(self, fault: Fault, tests: Collection[str]) -> Result | None:
        """The last result that holds for these tests: one of them finds the fault, or none of exactly these did."""
        tried = digest_of(tests)
        for result in reversed(self._all):
            if result.digest == fault.digest and (result.by in tests if result.found else result.tried == tried):
                return result
        return None


def table(faults: Sequence[Fault], results: Sequence[Result | None]) -> str:
    """Markdown: a row a fault, and the totals."""
    rows = ["| fault | module | what breaks | found by | s |", "|---|---|---|---|---|"]
    for fault, result in zip(faults, results, strict=True):
        secs = f"{result.secs:.0f}" if result else ""
        module = fault.file.removeprefix("parallax_runner/")
        rows.append(f"| {fault.name} | `{module}` | {fault.breaks} | {_finder(result)} | {secs} |")
    done = [result for result in results if result is not None]
    found = sum(result.found for result in done)
    total = (
        f"{found} of {len(faults)} faults are found, {len(done) - found} are not, {len(faults) - len(done)} not tried."
    )
    return "\n".join([*rows, "", total])


def _finder(result: Result | None) -> str:
    if result is None:
        return "not tried"
    if not result.found:
        return f"**not found** ({result.how})"
    return f"`{result.by}`" + ("" if result.how == "fails" else f" ({result.how})")
