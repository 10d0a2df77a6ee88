"""`python -m benchmarks.simulation PROFILE RESULTS…`: compares a simulation with real runs over shaped links.

PROFILE is the measured.json of the model (comm.measure_rows=true and action=simulate write one). RESULTS are files of
`scripts/bench --hosts`, with `hosts`, `mbit` and `latency_us`, and with `mode` and `step_ms` of each measurement. All
hosts share one machine's cores. If a file contains the `ideal` mode, its time is the time of a step without exchanges.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import Rows, markdown
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.cost import constants, measured
from parallax_runner.planning.cost.constants import Constants
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.simulation.simulation import simulate

IDEAL = "ideal"


@dataclass(frozen=True)
class Compared:
    """The step time of a mode on a number of hosts: the median of the measured times, and the modelled time."""

    hosts: int
    mode: str
    measured_ms: float
    modelled_ms: float

    @property
    def error(self) -> float:
        """The error of the modelled time, relative to the measured time."""
        return self.modelled_ms / self.measured_ms - 1


def compare(profile: Measured, results: Mapping[str, Any], base: Constants, *, cores: int) -> list[Compared]:
    """Compares all modes of a benchmark that the simulation supports. Raises KeyError if the results lack a field."""
    hosts = int(results["hosts"])
    by_mode: dict[str, list[float]] = {}
    for one in results["measurements"]:
        by_mode.setdefault(one["mode"], []).append(float(one["step_ms"]))
    medians = {mode: statistics.median(times) for mode, times in by_mode.items()}
    alone_ms = medians.get(IDEAL, 1000 * profile.step_secs * max(1.0, hosts / cores))
    gbit = None if results["mbit"] is None else results["mbit"] / 1000
    found = simulate(
        dataclasses.replace(profile, step_secs=alone_ms / 1000),
        base.with_link(gbit_per_sec=gbit, latency_us=results["latency_us"] or None),
        workers=hosts,
        workers_per_host=1,
        options=CommOptions(),
    )
    return [
        Compared(hosts, mode, medians[mode], found.at(mode, hosts).step_ms) for mode in found.comms if mode in medians
    ]


def rows_of(compared: Sequence[Compared]) -> Rows:
    """Returns one row per mode and number of hosts."""
    head = ("hosts", "mode", "measured ms a step", "modelled", "error of the model")
    body = tuple(
        (str(one.hosts), one.mode, f"{one.measured_ms:.1f}", f"{one.modelled_ms:.1f}", f"{100 * one.error:+.0f} %")
        for one in compared
    )
    return Rows(head, body)


def main(arguments: Sequence[str]) -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("profile", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--constants", type=Path, help="a file of scripts/calibrate (default: built-in constants)")
    parser.add_argument(
        "--cores", type=int, default=os.cpu_count() or 1, help="cores that all hosts share, if there is no ideal"
    )
    asked = parser.parse_args(arguments)
    base = constants.DEFAULTS if asked.constants is None else constants.load(asked.constants)
    profile = measured.load(asked.profile)
    found = [
        one
        for path in asked.results
        for one in compare(profile, json.loads(path.read_text(encoding="utf-8")), base, cores=asked.cores)
    ]
    print(markdown(rows_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
