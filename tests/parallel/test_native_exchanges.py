"""The values of native exchanges under a real mpirun: the results of each rank of tests/parallel/native_script.py."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from tests.parallel.native_script import (
    DTYPES_IN_PIECES,
    IDLE_SECS,
    LENGTHS,
    MANY,
    MANY_ROWS,
    NUMBERS,
    WAITS,
    rows_to_all,
    sums_in_rank_order,
)

pytestmark = pytest.mark.timeout(900)


def test_an_exchange_before_the_ranks_have_joined_is_an_error(ranks: list) -> None:
    assert all("FailedPrecondition" in rank["early"] and "has not joined" in rank["early"] for rank in ranks)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_sums_are_added_in_rank_order(ranks: list, dtype: str) -> None:
    """Equal bits on all ranks."""
    expected = [sums_in_rank_order(len(ranks), length, dtype).tobytes().hex() for length in LENGTHS]
    for rank in ranks:
        assert rank["sums"][f"{dtype} together"] == expected
        assert rank["sums"][f"{dtype} alone"] == expected


def test_long_sums_are_added_in_rank_order(ranks: list) -> None:
    """They are carried in pieces, and each rank sums a part of them in several steps."""
    totals = [sums_in_rank_order(len(ranks), MANY, dtype) for dtype in DTYPES_IN_PIECES]
    expected = [hashlib.sha256(total).hexdigest() for total in totals]
    assert [rank["in_pieces"]["sums"] for rank in ranks] == [expected] * len(ranks)


def test_many_rows_arrive_in_rank_order(ranks: list) -> None:
    size = len(ranks)
    for rank, found in enumerate(ranks):
        parts = []
        for other in range(size):
            before = sum(MANY_ROWS + other + to for to in range(rank))
            parts.append(rows_to_all(other, size)[before : before + MANY_ROWS + other + rank])
        assert found["in_pieces"]["counts"] == [len(part) for part in parts]
        assert found["in_pieces"]["rows"] == hashlib.sha256(np.concatenate(parts)).hexdigest()


def test_what_is_needed_first_comes_first(ranks: list) -> None:
    """Also if it begins later. On a busy machine, a rank may begin so late that the other exchange has ended."""
    assert any(all(tries) for tries in zip(*(rank["urgent"]["is_first"] for rank in ranks), strict=True))


def test_no_sum_depends_on_which_rank_is_late(ranks: list) -> None:
    orders = [sums for rank in ranks for sums in rank["late"]["sums"]]
    assert len(orders) == len(ranks) * math.factorial(len(ranks))
    assert all(sums == ranks[0]["sums"]["float32 alone"] for sums in orders)


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
@pytest.mark.parametrize("width", [0, 1, 3000])
def test_rows_arrive_in_rank_order(ranks: list, dtype: str, width: int) -> None:
    size = len(ranks)
    for number, rank in enumerate(ranks):
        gathered, came, of_chief, counts = rank["rows"][f"{dtype} {width}"]
        assert gathered == [[other % 2] * width for other in range(size) for _ in range(other)]
        assert counts == [(other + number) % 3 for other in range(size)]
        assert came == [[other % 2] * width for other in range(size) for _ in range((other + number) % 3)]
        assert of_chief == [1] * width


# Parts of a core, with the work of the exchanges: docs/design/0101-native-exchanges.md.
MOST_WHILE_WAITING = {"long": 0.04, "short": 0.04}
# A sleep takes about 30 us of CPU time, so 33 sleeps in 50 ms take 2 % of a core. The first sleeps of a wait are short.
MOST_FIRST_SLEEPS = 27
MOST_SLEEPS_PER_SEC = 120  # the later ones take 10 ms, unless something comes
MOST_SLEEPS_PER_IDLE_SEC = 12


@pytest.mark.parametrize("name", WAITS)
def test_a_waiting_rank_leaves_its_core_to_others(ranks: list, name: str) -> None:
    times, late_secs = WAITS[name]
    for rank in ranks[1:]:
        found = rank["waiting"][name]
        assert found["secs"] > 0.5 * times * late_secs
        assert found["cpu_secs"] < MOST_WHILE_WAITING[name] * found["secs"]
        assert found["sleeps"] <= MOST_FIRST_SLEEPS * times + MOST_SLEEPS_PER_SEC * found["secs"]


def test_a_rank_without_exchanges_leaves_its_core_to_others(ranks: list) -> None:
    for rank in ranks:
        assert rank["idle"]["secs"] >= IDLE_SECS
        assert rank["idle"]["sleeps"] < MOST_SLEEPS_PER_IDLE_SEC * rank["idle"]["secs"]


def test_places(ranks: list) -> None:
    assert [rank["places"]["places"] for rank in ranks] == [
        [number, len(ranks), number] for number in range(len(ranks))
    ]
