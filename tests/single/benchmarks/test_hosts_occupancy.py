"""How long links are full and cores idle: arithmetic on glances at the kernel's counters."""

from __future__ import annotations

import time

import pytest

from benchmarks.hosts import counters
from benchmarks.hosts.occupancy import INTERVAL_SECS, Glance, Onlooker, occupancy

# Two links of 8 Mbit/s, which carry 1 MB in a second; two cores.
GLANCES = [
    Glance(0.0, (0, 0), 0.0),
    Glance(1.0, (1_000_000, 0), 2.0),  # one is full, and both cores are idle
    Glance(2.0, (1_100_000, 900_000), 2.5),  # the other one is full, a core is idle for half a second
    Glance(3.0, (1_500_000, 1_300_000), 4.0),  # none is
    Glance(4.0, (1_500_000, 1_300_000), 4.0),
]


def test_of_a_step() -> None:
    found = occupancy(GLANCES, begin_secs=0.0, end_secs=4.0, steps=4, link_mbit=8, cores=2)
    assert found is not None
    assert (found.full_ms, found.busy_ms, found.idle_ms, found.neither_ms) == pytest.approx((500, 500, 500, 187.5))


def test_what_was_before_and_behind_is_left_out() -> None:
    found = occupancy(GLANCES, begin_secs=0.9, end_secs=2.1, steps=1, link_mbit=8, cores=2)
    assert found is not None
    assert (found.full_ms, found.busy_ms, found.idle_ms, found.neither_ms) == pytest.approx((1200, 900, 300, 0))
    assert occupancy(GLANCES, begin_secs=0.9, end_secs=1.1, steps=1, link_mbit=8, cores=2) is None


def test_it_looks_while_something_is_carried() -> None:
    began = time.monotonic()
    with Onlooker(lambda: (7, 8)) as onlooker:
        while len(onlooker.glances) < 3:
            time.sleep(INTERVAL_SECS)
    assert all(glance.carried_bytes == (7, 8) and glance.secs > began for glance in onlooker.glances)
    with Onlooker(lambda: ()) as nowhere:
        time.sleep(3 * INTERVAL_SECS)
    assert nowhere.glances == []


def test_counters_of_all_interfaces() -> None:
    text = (
        "Inter-| Receive | Transmit\n face |bytes | bytes\n  v1: 10 1 0 0 0 0 0 0 20 2 0\n v2:30 1 0 0 0 0 0 0 40 2 0\n"
    )
    found = counters.parse_all(text)
    assert {name: (one.received_bytes, one.sent_bytes) for name, one in found.items()} == {
        "v1": (10, 20),
        "v2": (30, 40),
    }
