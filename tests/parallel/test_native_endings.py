"""Native exchanges that fail, are cancelled or are left out: tests/parallel/native_endings.py."""

from __future__ import annotations

import pytest

from tests.parallel.native_endings import CANCELLED, ENDINGS, SLOW_SECS

pytestmark = pytest.mark.timeout(900)


def test_exchanges_that_end_leave_no_transfer_behind(ranks: list) -> None:
    """Otherwise a later exchange could get the rows of an earlier one."""
    right = [float(other) for other in range(len(ranks))]
    for rank in ranks:
        assert rank["ended_rows"] == {"ended": ENDINGS, "right": right, "transfers": 0}


@pytest.mark.parametrize(
    ("fault", "sides"),
    [
        ("length", ("a sum of float with 3 elements", "a sum of float with 4 elements")),
        ("width", ("a concatenation of float with rows of 8 bytes", "a concatenation of float with rows of 12 bytes")),
        ("shape", ("a broadcast of float with 8 elements", "a broadcast of float with 9 elements")),
        ("dtype", ("a sum of float with 3 elements", "a sum of double with 3 elements")),
        ("kind", ("a sum of float with 3 elements", "a concatenation of float with rows of 4 bytes")),
    ],
)
def test_a_mismatch_ends_the_exchange_on_every_rank_and_names_both_sides(
    ranks: list, fault: str, sides: tuple[str, str]
) -> None:
    for rank in ranks:
        said = rank["faults"][fault]["said"]
        assert said.startswith("AbortedError")
        assert all(side in said for side in sides)


def test_a_local_failure_ends_the_exchange_of_the_others(ranks: list) -> None:
    last = len(ranks) - 1
    assert "not a number here" in ranks[-1]["faults"]["local"]["said"]
    for rank in ranks[:-1]:
        assert is_ended_by(last, rank["faults"]["local"]["said"], ranks)


def test_a_deadline_of_one_rank_ends_the_exchange_of_the_others(ranks: list) -> None:
    assert ranks[0]["faults"]["deadline"]["said"].startswith("DeadlineExceededError")
    for rank in ranks[1:]:
        assert is_ended_by(0, rank["faults"]["deadline"]["said"], ranks)


def is_ended_by(failed: int, said: str, ranks: list) -> bool:
    """Between two ranks, a rank that has all values of the other one has its result, whatever happens there later."""
    has_all_values = len(ranks) == 2 and said == "no error"
    return has_all_values or f"the run was cancelled or failed on rank {failed}" in said


def test_a_rank_that_ends_is_named_by_those_that_wait_for_it(ranks: list) -> None:
    last = len(ranks) - 1
    assert all(f"rank {last} has ended" in rank["without_the_last"] for rank in ranks[:-1])


def test_a_rank_that_goes_on_without_an_exchange_ends_it(ranks: list) -> None:
    for rank in ranks[1:]:
        assert "rank 0 has ended its session.run without it" in rank["faults"]["skipped"]["said"]


@pytest.mark.parametrize("fault", ["length", "width", "shape", "dtype", "kind", "local", "deadline", "skipped"])
def test_later_exchanges_are_right(ranks: list, fault: str) -> None:
    assert all(rank["faults"][fault]["after"] == len(ranks) for rank in ranks)


def test_a_run_that_fails_before_its_exchanges_is_as_if_it_had_not_begun(ranks: list) -> None:
    size = len(ranks)
    expected = [number * 10.0 * size + sum(range(size)) for number in range(5)]
    assert all(rank["uncounted"]["found"] == expected for rank in ranks)


def test_a_rank_that_is_ahead_waits_for_the_others(ranks: list) -> None:
    """Also the chief, which gets nothing in a broadcast. So messages cannot come early without a limit."""
    assert all(rank["ahead"]["came"] == [0.0] * 3 for rank in ranks)
    assert ranks[0]["ahead"]["secs"] > 0.5 * SLOW_SECS


def test_messages_of_runs_that_failed_are_not_kept(ranks: list) -> None:
    size = len(ranks)
    assert ranks[0]["ahead"]["failed"] == 3
    for rank in ranks:
        assert rank["ahead"]["sums"] == [sum(range(size))] * 2
        assert (rank["ahead"]["early"], rank["ahead"]["transfers"]) == (0, 0)


@pytest.mark.parametrize("kind", CANCELLED)
def test_a_session_that_is_closed_ends_the_exchange_of_all_ranks(ranks: list, kind: str) -> None:
    assert ranks[0]["cancelled"][kind]["said"].startswith(("CancelledError", "AbortedError"))
    for rank in ranks[1:]:
        said = rank["cancelled"][kind]["said"]
        assert said.startswith("AbortedError")
        assert f"exchange «cancelled_{kind}»: the run was cancelled or failed on rank 0" in said
    assert all(rank["cancelled"][kind]["after"] == (len(ranks) if kind == "sum" else 1.0) for rank in ranks)


@pytest.mark.parametrize(("how", "own_error"), [("closed", "CancelledError"), ("deadline", "DeadlineExceededError")])
def test_a_run_that_ends_between_two_exchanges_ends_the_second_one(ranks: list, how: str, own_error: str) -> None:
    """Although its rank begins no other run of the session."""
    assert ranks[0]["left_out"][how]["said"].startswith(own_error)
    for rank in ranks[1:]:
        said = rank["left_out"][how]["said"]
        assert said.startswith("AbortedError")
        assert "exchange «behind_the_end»: rank 0 has ended its session.run without it" in said
    assert all(rank["left_out"][how]["after"] == len(ranks) for rank in ranks)


def test_a_rank_that_comes_late_names_the_rank_whose_run_ended_first(ranks: list) -> None:
    """Not one of those that waited and have ended their runs, too."""
    for number in range(10):
        said = ranks[-1]["left_out"][f"late_{number}"]["said"]
        assert "exchange «behind_the_end»: rank 0 has ended its session.run without it" in said


@pytest.mark.parametrize("case", ["cancelled", "left_out"])
def test_cancelled_runs_leave_nothing_behind(ranks: list, case: str) -> None:
    assert all((rank[case]["early"], rank[case]["transfers"]) == (0, 0) for rank in ranks)
