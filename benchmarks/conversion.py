"""`scripts/bench data`: measures the conversion of a file in Criteo's layout, beside pyarrow's own CSV reader."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import criteo, machine
from benchmarks.own_memory import PeakMemory
from benchmarks.runs import RunFailed
from benchmarks.tables import Rows

OURS, STRINGS, CODES = "converted", "pyarrow, strings", "pyarrow, codes"
# How each way is told to its process.
WAYS: Mapping[str, str] = {OURS: "converted", STRINGS: "strings", CODES: "codes"}


@dataclass(frozen=True)
class Conversion:
    """One conversion: its duration, its CPU time, how much of that numbered strings, and the largest memory of its
    process, with and without pages of files."""

    way: str
    round: int
    secs: float
    cpu_secs: float
    numbering_secs: float
    anonymous_bytes: int
    memory_bytes: int

    @property
    def reading_secs(self) -> float:
        """The CPU time that reads, parses and writes. pyarrow numbers strings while it parses, so this is all of its
        time."""
        return self.cpu_secs - self.numbering_secs


def measure(*, repeats: int, megabytes: int, folder: Path, tell: Callable[[str], None]) -> tuple[list[Conversion], int]:
    """Converts a file in each way, by turns. Returns the measurements and the size of the file in bytes. Raises
    RunFailed."""
    found = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch, "criteo.tsv")
        rows = criteo.write(path, megabytes * 10**6)
        size_bytes = path.stat().st_size
        tell(f"{size_bytes / 1e6:.0f} MB, {rows} rows")
        for number in range(repeats):
            for way in WAYS:
                warning = machine.idle_warning(machine.look_around())
                if warning:
                    tell(warning)
                found.append(_in_process(way, number, path, Path(scratch)))
                tell(f"{way}: {size_bytes / 1e6 / found[-1].secs:.0f} MB/s")
    return found, size_bytes


def _in_process(way: str, number: int, path: Path, scratch: Path) -> Conversion:
    with tempfile.TemporaryDirectory(dir=scratch) as target:
        argv = [sys.executable, "-m", "benchmarks.conversion", WAYS[way], str(path), target]
        process = subprocess.Popen(argv, cwd=machine.ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RunFailed(f"{way}: the conversion ended with {process.returncode}")
    told: dict[str, Any] = json.loads(said)
    return Conversion(way, number, memory_bytes=usage.ru_maxrss * 1024, **told)


def rows_of(found: Sequence[Conversion], size_bytes: int) -> Rows:
    """Returns one row per way. The share compares the speed with pyarrow's in the same round."""
    head = (
        "way",
        "MB/s",
        "min – max",
        "share of pyarrow, strings",
        "share of pyarrow, codes",
        "CPU s",
        "CPU s without numbering",
        "share of pyarrow, strings, in CPU time",
        "without numbering",
        "peak memory MB",
        "without files",
    )
    by_way = {way: [one for one in found if one.way == way] for way in WAYS}
    body = []
    for way, measured in by_way.items():
        speeds = [size_bytes / 1e6 / one.secs for one in measured]
        body.append(
            (
                way,
                f"{median(speeds):.0f}",
                f"{min(speeds):.0f} – {max(speeds):.0f}",
                _share([one.secs for one in measured], [one.secs for one in by_way[STRINGS]]),
                _share([one.secs for one in measured], [one.secs for one in by_way[CODES]]),
                f"{median(one.cpu_secs for one in measured):.1f}",
                f"{median(one.reading_secs for one in measured):.1f}",
                _share([one.cpu_secs for one in measured], [one.cpu_secs for one in by_way[STRINGS]]),
                _share([one.reading_secs for one in measured], [one.cpu_secs for one in by_way[STRINGS]]),
                f"{median(one.memory_bytes for one in measured) / 1e6:.0f}",
                f"{median(one.anonymous_bytes for one in measured) / 1e6:.0f}",
            )
        )
    return Rows(head, tuple(body))


def _share(ours: Sequence[float], theirs: Sequence[float]) -> str:
    shares = [other / one for one, other in zip(ours, theirs, strict=True)]
    return f"{median(shares):.2f} ({min(shares):.2f} – {max(shares):.2f})"


def as_json(found: Sequence[Conversion]) -> list[dict[str, Any]]:
    """Returns the measurements as JSON values."""
    return [asdict(one) for one in found]


def _convert(path: Path, target: Path) -> None:
    from parallax_runner.data.table.convert import Sources, stored_table
    from parallax_runner.data.table.stored_table import Cell, RawColumn

    columns = [RawColumn(name, Cell.STRING if name in criteo.STRINGS else Cell.NUMBER) for name in criteo.NAMES]
    stored_table(Sources({"train": (str(path),)}, header=criteo.NAMES), columns, cache_dir=str(target))


def _convert_with_pyarrow(path: Path, target: Path, *, as_codes: bool) -> None:
    """Writes Arrow's format from a stream, because the file may be larger than the memory. With `as_codes`, each batch
    has codes and a dictionary of its own, which pyarrow cannot make one in a stream."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    string = pa.dictionary(pa.int32(), pa.string()) if as_codes else pa.string()
    types = {name: string if name in criteo.STRINGS else pa.float32() for name in criteo.NAMES}
    reader = pa_csv.open_csv(
        path,
        read_options=pa_csv.ReadOptions(column_names=criteo.NAMES, block_size=2**22 if as_codes else 2**20),
        parse_options=pa_csv.ParseOptions(delimiter="\t"),
        convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=False),
    )
    with reader, pa.ipc.new_stream(target / "table.arrows", reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def main(way: str, path: Path, target: Path) -> None:
    """Converts a file in this process. Prints what it took as JSON."""
    import pyarrow.csv  # noqa: F401

    from benchmarks.numbering import Numbering

    logging.disable()
    with PeakMemory() as memory, Numbering() as numbering:
        started, cpu_started = time.perf_counter(), time.process_time()
        if way == WAYS[OURS]:
            _convert(path, target)
        else:
            _convert_with_pyarrow(path, target, as_codes=way == WAYS[CODES])
        secs, cpu_secs = time.perf_counter() - started, time.process_time() - cpu_started
    told = {"secs": secs, "cpu_secs": cpu_secs, "numbering_secs": numbering.cpu_secs}
    print(json.dumps(told | {"anonymous_bytes": memory.peak_bytes}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
