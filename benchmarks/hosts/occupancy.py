"""Computes from the kernel's counters how long links are full and cores are idle during a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import psutil

INTERVAL_SECS = 0.02
# A link that uses at least this share of its capacity is treated as full.
FULL = 0.8


@dataclass(frozen=True)
class Glance:
    """A sample at the time `secs`: the bytes that each host's link has carried each way, and all cores' idle time."""

    secs: float
    carried_bytes: tuple[int, ...]
    idle_secs: float


@dataclass(frozen=True)
class Occupancy:
    """Times per step, in milliseconds.

    `full_ms` is the time during which at least one link was full. `busy_ms` is the time that the cores computed, and
    `idle_ms` their idle time, both as a mean over cores. `neither_ms` is the part of `idle_ms` during which no link was
    full.
    """

    full_ms: float
    busy_ms: float
    idle_ms: float
    neither_ms: float


class Onlooker:
    """A context manager that takes a sample every 20 ms."""

    def __init__(self, carried_bytes: Callable[[], tuple[int, ...]]) -> None:
        self.glances: list[Glance] = []
        self._carried_bytes = carried_bytes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        if self._carried_bytes():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(INTERVAL_SECS):
            cpu = psutil.cpu_times()
            self.glances.append(Glance(time.monotonic(), self._carried_bytes(), cpu.idle + cpu.iowait))


def occupancy(
    glances: Sequence[Glance], *, begin_secs: float, end_secs: float, steps: int, link_mbit: int, cores: int
) -> Occupancy | None:
    """Returns the mean times per step over `steps` steps between two points in time, or None if samples are missing."""
    seen = [glance for glance in glances if begin_secs <= glance.secs <= end_secs]
    if len(seen) < 2:
        return None
    full = busy = idle = neither = 0.0
    for before, after in pairwise(seen):
        secs = after.secs - before.secs
        carried = zip(before.carried_bytes, after.carried_bytes, strict=True)
        is_full = max(end - begin for begin, end in carried) * 8 >= FULL * link_mbit * 1e6 * secs
        idle_secs = (after.idle_secs - before.idle_secs) / cores
        full += secs if is_full else 0
        busy += secs - idle_secs
        idle += idle_secs
        neither += 0 if is_full else idle_secs
    # The samples and the steps cover different durations, so totals are scaled by the ratio of the two durations.
    per_step = 1000 * (end_secs - begin_secs) / (seen[-1].secs - seen[0].secs) / steps
    return Occupancy(full * per_step, busy * per_step, idle * per_step, neither * per_step)
