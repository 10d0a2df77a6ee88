"""`scripts/bench partitions`: the choice and cost of `partition=search`, compared with a sweep over numbers of shards.

Each number of the sweep is measured by a search that may try only that number, so the sweep splits variables and times
steps as a real search does. Runs use a cluster of hosts over shaped links, or loopback if no such links can be made.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.hosts import network
from benchmarks.hosts.cluster import Cluster, shaped
from benchmarks.hosts.measure import TERMINATED_STATUS
from benchmarks.hosts.network import Link
from benchmarks.runs import Run
from benchmarks.tables import Rows
from parallax_runner.search.candidates import MOST_TRIALS
from parallax_runner.search.trial import WARM_UP_STEPS

SWEEP = (1, 2, 4, 8, 16, 32, 64)
# The cost of a search is reported as a share of a run with this number of steps.
WHOLE_STEPS = 10_000
WITHIN = 1.05
# Two variables with 800,000 rows of 256 values: as many words as in the paper's language model.
MODEL = ("experiment=zipf_lm", "data.vocab_size=800000")
ALIKE = ("comm=hybrid", "cluster.threads_per_worker=1", "data.validation_examples=0", "tracking=off", "ckpt=off")


@dataclass(frozen=True)
class Searched:
    """One search: the numbers in the order of trials, the choice, and the steps and seconds of the trials.

    Steps and seconds include the changes of the plan between trials.
    """

    candidates: tuple[int, ...]
    choice: int
    steps: int
    secs: float

    def cost_share(self, step_secs: float) -> float:
        """Returns the time that the search adds to its steps, as a share of WHOLE_STEPS steps of `step_secs` each."""
        return max(0.0, self.secs - self.steps * step_secs) / (WHOLE_STEPS * step_secs)


@dataclass(frozen=True)
class Found:
    """All searches, and the seconds per step for each number of shards and each round. `link` is None on loopback."""

    hosts: int
    link: Link | None
    searches: tuple[Searched, ...]
    swept: Mapping[int, tuple[float, ...]]
    busy: int

    @property
    def best(self) -> int:
        """The number with the smallest median."""
        return min(self.swept, key=self.median)

    def median(self, partitions: int) -> float:
        """Returns the median seconds per step with `partitions` shards."""
        return statistics.median(self.swept[partitions])

    def verdict(self, searched: Searched) -> str:
        """States whether a search's choice is as good as the best number of the sweep."""
        if searched.choice not in self.swept:
            return "not swept"
        ratio = self.median(searched.choice) / self.median(self.best)
        if ratio <= WITHIN:
            return f"within 5 % of the best ({100 * (ratio - 1):+.1f} %)"
        inside = min(self.swept[searched.choice]) <= max(self.swept[self.best])
        return f"{100 * (ratio - 1):+.1f} %, {'within' if inside else 'outside'} the spread of the best one"

    def facts(self) -> list[str]:
        """Returns one sentence about the benchmark and one about each search."""
        where = "loopback" if self.link is None else f"{self.hosts} hosts over links of {self.link.mbit} Mbit/s"
        found = [f"{self.hosts} workers and {self.hosts} servers on {where}; best of the sweep: {self.best}"]
        for one in self.searches:
            step_secs = self.median(one.choice if one.choice in self.swept else self.best)
            tried = ", ".join(map(str, one.candidates))
            found.append(
                f"the search tried {tried} ({len(one.candidates)} trials), chose {one.choice}: {self.verdict(one)}; "
                f"it cost {100 * one.cost_share(step_secs):.2f} % of a run of {WHOLE_STEPS:,} steps"
            )
        return found

    def rows(self) -> Rows:
        """Returns one row per number of shards."""
        head = ("partitions", "ms a step", "min – max", "relative to the best", "chosen by searches")
        body = tuple(
            (
                str(number),
                f"{1000 * self.median(number):.1f}",
                f"{1000 * min(secs):.1f} – {1000 * max(secs):.1f}",
                f"{self.median(number) / self.median(self.best):.2f}",
                str(sum(one.choice == number for one in self.searches)),
            )
            for number, secs in self.swept.items()
        )
        return Rows(head, body)

    def as_json(self) -> dict[str, Any]:
        """Returns all raw numbers."""
        return {
            "hosts": self.hosts,
            "mbit": None if self.link is None else self.link.mbit,
            "searches": [asdict(one) for one in self.searches],
            "swept_step_secs": {str(number): list(secs) for number, secs in self.swept.items()},
            "busy_before": self.busy,
        }


def measure(asked: argparse.Namespace, folder: Path, tell: Callable[[str], None]) -> Found:
    """Runs one search and each number alone in each round. Raises RunFailed, or NoNetwork if hosts cannot be joined."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED_STATUS))
    folder.mkdir()
    if not network.is_inside():
        return _measure(Cluster(asked.hosts), None, asked, folder, tell)
    link = Link(asked.mbit)
    with shaped(asked.hosts, link) as cluster:
        return _measure(cluster, link, asked, folder, tell)


def _measure(
    cluster: Cluster, link: Link | None, asked: argparse.Namespace, folder: Path, tell: Callable[[str], None]
) -> Found:
    swept: dict[int, list[float]] = {number: [] for number in SWEEP}
    searches: list[Searched] = []
    busy = 0
    for number in range(asked.repeats):
        for partitions in (None, *SWEEP):
            around = machine.look_around()
            busy += around["busy_share"] > machine.BUSY_LIMIT
            name = "search" if partitions is None else str(partitions)
            summary = _run(cluster, partitions, asked, folder / f"{number}_{name}")
            if partitions is None:
                searches.append(searched_of(summary))
                tell(f"round {number + 1}/{asked.repeats} search: {searches[-1]}")
            else:
                swept[partitions].append(summary["partition_step_ms"][0] / 1000)
                tell(
                    f"round {number + 1}/{asked.repeats} {partitions}: {summary['partition_step_ms'][0]:.1f} ms a step"
                )
    return Found(asked.hosts, link, tuple(searches), {key: tuple(secs) for key, secs in swept.items()}, busy)


def searched_of(summary: Mapping[str, Any]) -> Searched:
    """Reads the search from a run's summary."""
    return Searched(
        candidates=tuple(summary["partition_candidates"]),
        choice=summary["partition_choice"],
        steps=summary["partition_search_steps"],
        secs=summary["partition_search_secs"],
    )


def _run(cluster: Cluster, partitions: int | None, asked: argparse.Namespace, folder: Path) -> Mapping[str, Any]:
    bounds = (1, max(SWEEP)) if partitions is None else (partitions, partitions)
    trials = MOST_TRIALS if partitions is None else 1
    given = [
        *ALIKE,
        *MODEL,
        *cluster.overrides(),
        *("partition=search", f"partition.min={bounds[0]}", f"partition.max={bounds[1]}"),
        f"partition.steps_per_trial={asked.steps}",
        # The first steps after the last change of the plan also belong to the search.
        f"train.steps={trials * (asked.steps + WARM_UP_STEPS) + WARM_UP_STEPS}",
        *asked.overrides,
    ]
    # A separate cache prevents the search from reusing another run's result.
    os.environ["XDG_CACHE_HOME"] = str(folder.with_name(f"{folder.name}.cache"))
    with Run(folder, given, cwd=folder.parent) as run:
        return run.wait()
