"""The constants of the cost model: times of exchanges and updates, measured by scripts/calibrate or assumed."""

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
    """The time that exchanges of one kind take when they are in flight together.

    The time is `overhead_secs` + rounds · `latency_secs` + number of exchanges · `each_secs` + bytes on the busiest
    link · `secs_per_byte`.

    A ring of N ranks needs 2(N-1) rounds for allreduce and N-1 rounds for allgather. An alltoall needs N-1 rounds. An
    exchange with a server needs two rounds: a request and a response.
    """

    overhead_secs: float
    latency_secs: float
    each_secs: float
    secs_per_byte: float


@dataclass(frozen=True)
class Constants:
    """The constants for five kinds of exchanges and for local work.

    `server_secs_per_byte` is the time for accumulating a pushed gradient on a server, and `merge_secs_per_byte` the
    time for merging rows by ids. The `apply_…` constants are the times for updating a dense variable or single rows.
    `ask_secs_per_row` is the time for finding the distinct ids in a batch before their rows are requested.

    `source` is «defaults», or states where and when the constants were measured. `spread` contains the relative
    standard errors of fitted constants by name, such as `allreduce.secs_per_byte`.
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
        """Returns the constants for the same processes with different links.

        The given bandwidth and latency replace the constants of all exchanges.
        """
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


# Rough values for a cluster without calibration. They are rounded results of scripts/calibrate on a virtual machine
# with two cores, with cluster.workers=8 and cluster.workers=4 (2026-11-23 and 2026-11-24).
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
    """Reads the file that `save` wrote. Raises OSError, ValueError, KeyError or TypeError for any other file."""
    fields = json.loads(read_regular(path))
    if fields["format"] != FORMAT:
        raise ValueError(f"{path}: format {fields['format']}, expected {FORMAT}")
    return Constants(**fields | {name: Exchange(**fields[name]) for name in EXCHANGES})


def save(constants: Constants, path: Path) -> None:
    """Writes `constants` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(dataclasses.asdict(constants), indent=1) + "\n")
