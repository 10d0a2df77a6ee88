"""What `scripts/bench --hosts N` does: makes the hosts where it can, and measures on loopback where it cannot."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hosts import network, rounds
from benchmarks.hosts.cluster import Cluster, shaped
from benchmarks.hosts.network import Link, NoNetwork
from benchmarks.hosts.rounds import Measurement

TERMINATED_STATUS = 143


@dataclass(frozen=True)
class Measured:
    """All rounds; `link` is None where they were made on loopback."""

    hosts: int
    link: Link | None
    measurements: list[Measurement]

    @property
    def fact(self) -> str:
        """What the numbers are of, in a sentence."""
        if self.link is None:
            return (
                f"{self.hosts} ranks on loopback, without hosts of their own; servers of a mode that has some: as many"
            )
        late = f" and {self.link.latency_us} µs of latency" if self.link.latency_us else ""
        return (
            f"{self.hosts} hosts (network namespaces) over links of {self.link.mbit} Mbit/s each way{late}, a rank "
            "on each and, where the mode has servers, a server, all on this machine's cores"
        )

    def as_json(self) -> dict[str, Any]:
        """All raw numbers."""
        mbit, latency_us = (None, None) if self.link is None else (self.link.mbit, self.link.latency_us)
        numbers = rounds.as_json(self.measurements)
        return {"hosts": self.hosts, "mbit": mbit, "latency_us": latency_us, "measurements": numbers}


def enter_network(tell: Callable[[str], None]) -> None:
    """Becomes the same command in a network of its own; returns when in one, or with a word where there can be none."""
    try:
        network.enter([sys.executable, "-m", "benchmarks", *sys.argv[1:]])
    except NoNetwork as error:
        tell(f"{error}: measuring on loopback, where links cost nothing and no interface counts")


def measure_hosts(asked: argparse.Namespace, folder: Path, tell: Callable[[str], None]) -> Measured:
    """Raises RunFailed, and NoNetwork where the hosts cannot be joined."""
    # What is entered below is left in order, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED_STATUS))
    folder.mkdir()

    def measure(cluster: Cluster) -> list[Measurement]:
        return rounds.measure(
            asked.modes.split(","),
            cluster,
            repeats=asked.repeats,
            steps=asked.steps,
            overrides=asked.overrides,
            folder=folder,
            tell=tell,
        )

    if not network.is_inside():
        return Measured(asked.hosts, None, measure(Cluster(asked.hosts)))
    link = Link(asked.mbit, asked.latency_us)
    if link.latency_us and not network.has_netem():
        tell("this kernel has no netem: --latency-us is left out")
        link = Link(asked.mbit)
    with shaped(asked.hosts, link) as cluster:
        return Measured(asked.hosts, link, measure(cluster))
