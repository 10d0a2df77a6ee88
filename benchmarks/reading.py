"""`scripts/bench read`: measures how many rows a core reads of a converted table, beside `tf.data`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import criteo, machine
from benchmarks.read_ways import PREPARE, TEXT, WAYS
from benchmarks.runs import RunFailed
from benchmarks.tables import Rows

PEER = "tf.data, TFRecords of ids"


@dataclass(frozen=True)
class Reading:
    """What one way has read in one round: rows, in this time and CPU time on one core. The memory is that of the
    process without pages of files, after the first batches and at its peak."""

    way: str
    round: int
    rows: int
    secs: float
    cpu_secs: float
    first_bytes: int
    peak_bytes: int

    @property
    def rate(self) -> float:
        """Rows per second of CPU time."""
        return self.rows / self.cpu_secs


@dataclass(frozen=True)
class Prepared:
    """The files: the number of rows of the table and of the peers' files, and how long it took to make each."""

    size_bytes: int
    rows: int
    conversion_secs: float
    peer_rows: int
    ids_secs: float
    cells_secs: float

    def facts(self) -> list[str]:
        """Returns sentences for the results."""
        return [
            f"a file of {self.size_bytes / 1e6:.0f} MB in Criteo's layout, {self.rows} rows, converted in "
            f"{self.conversion_secs:.1f} s; its first {self.peer_rows} rows as TFRecords, written in "
            f"{self.ids_secs:.1f} s (ids) and {self.cells_secs:.1f} s (cells) by Python",
            "each way has its own process on one core",
        ]


def measure(
    *, repeats: int, megabytes: int, peer_rows: int, folder: Path, tell: Callable[[str], None]
) -> tuple[list[Reading], Prepared]:
    """Reads a file in each way, by turns. Raises RunFailed."""
    found = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch, TEXT)
        criteo.write(path, megabytes * 10**6)
        told = _in_process(PREPARE, Path(scratch), peer_rows)
        prepared = Prepared(path.stat().st_size, **told)
        tell("; ".join(prepared.facts()))
        for number in range(repeats):
            for way in WAYS:
                warning = machine.idle_warning(machine.look_around())
                if warning:
                    tell(warning)
                found.append(Reading(way, number, **_in_process(way, Path(scratch), prepared.rows)))
                tell(f"{way}: {found[-1].rate:,.0f} rows per second of CPU time")
    return found, prepared


def _in_process(way: str, folder: Path, rows: int) -> dict[str, Any]:
    argv = [sys.executable, "-m", "benchmarks.read_ways", way, str(folder), str(rows)]
    done = subprocess.run(argv, cwd=machine.ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RunFailed(f"{way}: the process ended with {done.returncode}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def rows_of(found: Sequence[Reading]) -> Rows:
    """Returns one row per way. The share compares rows per CPU time with the fastest peer's in the same round."""
    head = ("way", "rows per CPU s", "min – max", "share of TFRecords of ids", "rows per s", "memory MB", "its peak MB")
    by_way = {way: [one for one in found if one.way == way] for way in WAYS}
    body = []
    for way, measured in by_way.items():
        rates = [one.rate for one in measured]
        body.append(
            (
                way,
                f"{median(rates):,.0f}",
                f"{min(rates):,.0f} – {max(rates):,.0f}",
                _share(measured, by_way[PEER]),
                f"{median(one.rows / one.secs for one in measured):,.0f}",
                f"{median(one.first_bytes for one in measured) / 1e6:.0f}",
                f"{max(one.peak_bytes for one in measured) / 1e6:.0f}",
            )
        )
    return Rows(head, tuple(body))


def _share(ours: Sequence[Reading], theirs: Sequence[Reading]) -> str:
    shares = [one.rate / other.rate for one, other in zip(ours, theirs, strict=True)]
    return f"{median(shares):.2f} ({min(shares):.2f} – {max(shares):.2f})"


def as_json(found: Sequence[Reading], prepared: Prepared) -> dict[str, Any]:
    """Returns the measurements as JSON values."""
    return {"measurements": [asdict(one) for one in found], "files": asdict(prepared)}
