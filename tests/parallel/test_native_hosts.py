"""Native exchanges on two hosts, with and without sockets that tell what comes: tests/parallel/native_hosts.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import network
from tests.parallel import native_hosts
from tests.parallel.native_script import IDLE_SECS, LENGTHS, NUMBERS, WAITS, sums_in_rank_order

MISSING = network.missing()
END_SECS = 300
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.timeout(END_SECS + 60)]

# As on one host, but a message that comes over a link ends a pause before MPI has all of it.
MOST_FIRST_SLEEPS = 40
MOST_SLEEPS_PER_SEC = 120
# Without sockets, pauses take 2 ms at most, so the others find soon what has come.
LEAST_SLEEPS_PER_SEC = 200
MOST_SLEEPS_PER_IDLE_SEC = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("native_hosts")
    subprocess.run([sys.executable, "-m", native_hosts.__name__, str(made)], timeout=END_SECS, check=True)
    return made


@pytest.fixture(scope="module", params=["sockets", "no_sockets"])
def either(request: pytest.FixtureRequest, folder: Path) -> list[dict[str, Any]]:
    return results(folder / request.param)


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(native_hosts.RANKS)]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_sums_are_added_in_rank_order(either: list, dtype: str) -> None:
    expected = [sums_in_rank_order(native_hosts.RANKS, length, dtype).tobytes().hex() for length in LENGTHS]
    assert [rank["sums"][f"{dtype} alone"] for rank in either] == [expected] * native_hosts.RANKS


@pytest.mark.parametrize("name", WAITS)
def test_a_rank_that_waits_for_another_host_leaves_its_core_to_others(folder: Path, name: str) -> None:
    times, late_secs = WAITS[name]
    for rank in results(folder / "sockets")[1:]:
        found = rank["waiting"][name]
        assert found["secs"] > 0.5 * times * late_secs
        assert found["sleeps"] <= MOST_FIRST_SLEEPS * times + MOST_SLEEPS_PER_SEC * found["secs"]


def test_a_rank_that_sees_no_sockets_looks_for_messages(folder: Path) -> None:
    """Otherwise each message from another host could come 10 ms late. Rank 0, which is late, wakes the rank of its own
    host by a bell."""
    for rank in results(folder / "no_sockets")[native_hosts.RANKS_OF_HOST :]:
        found = rank["waiting"]["long"]
        assert found["sleeps"] > LEAST_SLEEPS_PER_SEC * found["secs"]


def test_a_rank_without_exchanges_leaves_its_core_to_others(either: list) -> None:
    for rank in either:
        assert rank["idle"]["secs"] >= IDLE_SECS
        assert rank["idle"]["sleeps"] < MOST_SLEEPS_PER_IDLE_SEC * rank["idle"]["secs"]
