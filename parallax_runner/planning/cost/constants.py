"""The constants of the cost model: what exchanges and updates take, measured by scripts/calibrate or assumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parallax_runner.files.regular import read_regular
from parallax_runner.files.whole import write_whole

FORMAT = 3
GBIT_BYTES = 1e9 / 8
EXCHANGES = ("allreduce", "allgather", "alltoall", "pull", "push")


@dataclass(frozen=True)
class Exchange:
    """Seconds of exchanges of a kind in flight together: `overhead_secs` + rounds · `latency_secs` + their number ·
    `each_secs` + bytes on the busiest link · secs_per_byte.

    A ring of N goes 2(N-1) rounds for allreduce and N-1 for allgather; an alltoall has N-1 messages; a server is asked
    and answers.
    """

    overhead_secs: float
    latency_secs: float
    each_secs: float
    secs_per_byte: float


@dataclass(frozen=True)
class Constants:
    """Five exchanges, and seconds per byte that a server takes to add a push, anybody to merge rows by their ids, and
    an update to be applied: to a dense variable, or to rows, with `apply_sparse_secs_per_row` on top. Rows that are not
    at hand are asked for: `ask_secs_per_row` is what it takes to find the distinct ones of a batch's ids.

    `source` is for people: «defaults», or where and when they were measured. `spread` has relative standard errors of
    what was fitted, by name, such as `allreduce.secs_per_byte`.
    """

    allreduce: Exchange
    allgather: Exchange
    alltoall: Exchange
    pull: Exchange
    push: Exchange
    server_secs_per_byte: float
    merge_secs_per_byte: float
    apply_dense_secs_per_byte: float
    apply_sparse_secs_per_byte: float
    apply_sparse_secs_per_row: float
    ask_secs_per_row: float
    source: str
    spread: Mapping[str, float] = field(default_factory=dict)
    format: int = FORMAT

    def with_link(self, *, gbit_per_sec: float | None, latency_us: float | None) -> Constants:
        """The same processes behind other links: what crosses a link takes what the link takes."""
        if gbit_per_sec is None and latency_us is None:
            return self
        changed = {}
        if gbit_per_sec is not None:
            changed["secs_per_byte"] = 1 / (gbit_per_sec * GBIT_BYTES)
        if latency_us is not None:
            changed["latency_secs"] = latency_us * 1e-6
        link = ", ".join(
            ([f"{gbit_per_sec:g} Gbit/s"] if gbit_per_sec is not None else [])
            + ([f"{latency_us:g} µs"] if latency_us is not None else [])
        )
        exchanges = {name: dataclasses.replace(getattr(self, name), **changed) for name in EXCHANGES}
        return dataclasses.replace(self, **exchanges, source=f"{self.source}; links of {link}")


# Orders of magnitude, for a cluster that nobody has calibrated: what scripts/calibrate found on a virtual machine of
# two cores, with cluster.workers=8 and 4 (2026-11-23 and 24), rounded.
DEFAULTS = Constants(
    allreduce=Exchange(overhead_secs=1e-3, latency_secs=100e-6, each_secs=15e-6, secs_per_byte=0.55e-9),
    allgather=Exchange(overhead_secs=1e-3, latency_secs=100e-6, each_secs=15e-6, secs_per_byte=0.4e-9),
    alltoall=Exchange(overhead_secs=1e-3, latency_secs=100e-6, each_secs=0.0, secs_per_byte=0.4e-9),
    pull=Exchange(overhead_secs=1.5e-3, latency_secs=50e-6, each_secs=150e-6, secs_per_byte=0.6e-9),
    push=Exchange(overhead_secs=2e-3, latency_secs=50e-6, each_secs=250e-6, secs_per_byte=0.75e-9),
    server_secs_per_byte=0.1e-9,
    merge_secs_per_byte=0.5e-9,
    apply_dense_secs_per_byte=0.1e-9,
    apply_sparse_secs_per_byte=0.8e-9,
    apply_sparse_secs_per_row=0.07e-6,
    ask_secs_per_row=0.1e-6,
    source="defaults",
)


def load(path: Path) -> Constants:
    """Reads what `save` wrote. Raises OSError, ValueError, KeyError or TypeError where it is not that."""
    fields = json.loads(read_regular(path))
    if fields["format"] != FORMAT:
        raise ValueError(f"{path}: format {fields['format']}, expected {FORMAT}")
    return Constants(**fields | {name: Exchange(**fields[name]) for name in EXCHANGES})


def save(constants: Constants, path: Path) -> None:
    """Writes JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(dataclasses.asdict(constants), indent=1) + "\n")
