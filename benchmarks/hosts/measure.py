"""Runs `scripts/bench --hosts N`. Makes the hosts if possible, and otherwise measures on loopback."""

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
from benchmarks.runs import RunFailed

TERMINATED_STATUS = 143
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Measured:
    """All rounds. `link` is None on loopback. If some rounds are missing, `ended_early` is the reason."""

    hosts: int
    link: Link | None
    measurements: list[Measurement]
    ended_early: str | None = None

    @property
    def fact(self) -> str:
        """Returns a sentence that describes the measurement."""
        if self.link is None:
            return f"{self.hosts} ranks on loopback, not on separate hosts; one server per rank if the mode has any"
        late = f" and {self.link.latency_us} µs of latency" if self.link.latency_us else ""
        return (
            f"{self.hosts} hosts (network namespaces that share the cores of this machine) with links of "
            f"{self.link.mbit} Mbit/s each way{late}; one rank per host, and one server per host if the mode has any"
        )

    def as_json(self) -> dict[str, Any]:
        """Returns all raw numbers."""
        mbit, latency_us = (None, None) if self.link is None else (self.link.mbit, self.link.latency_us)
        numbers = rounds.as_json(self.measurements)
        facts = {"hosts": self.hosts, "mbit": mbit, "latency_us": latency_us, "ended_early": self.ended_early}
        return facts | {"measurements": numbers}


def enter_network(tell: Callable[[str], None]) -> None:
    """Restarts this command in a separate network. Returns if the process is already in that network. If the network
    cannot be made, prints a message and returns."""
    try:
        network.enter([sys.executable, "-m", "benchmarks", *sys.argv[1:]])
    except NoNetwork as error:
        tell(f"{error}: measuring on loopback, without link costs and interface counters")


def measure_hosts(asked: argparse.Namespace, folder: Path, tell: Callable[[str], None]) -> Measured:
    """Returns the measurements, even if a later run fails or is interrupted.

    Raises RunFailed or KeyboardInterrupt if this happens before the first measurement is complete. Raises NoNetwork if
    the hosts cannot be joined.
    """
    # With this handler, SIGTERM exits the context managers below in order, like Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED_STATUS))
    folder.mkdir()

    def measure(cluster: Cluster, link: Link | None) -> Measured:
        made = rounds.measure(
            asked.modes.split(","),
            cluster,
            repeats=asked.repeats,
            steps=asked.steps,
            overrides=asked.overrides,
            folder=folder,
            tell=tell,
        )
        found: list[Measurement] = []
        try:
            for one in made:
                found.append(one)
        except (RunFailed, KeyboardInterrupt) as error:
            if not found:
                raise
            return Measured(asked.hosts, link, found, str(error) or INTERRUPTED)
        return Measured(asked.hosts, link, found)

    if not network.is_inside():
        return measure(Cluster(asked.hosts), None)
    link = Link(asked.mbit, asked.latency_us)
    if link.latency_us and not network.has_netem():
        tell("this kernel has no netem: --latency-us is ignored")
        link = Link(asked.mbit)
    with shaped(asked.hosts, link) as cluster:
        return measure(cluster, link)
