"""Native exchanges of all ranks match, whatever the order in which ranks begin them: tests/parallel/native_order.py."""

from __future__ import annotations

import pytest

from tests.parallel.native_order import BESIDE, BESIDE_FIRST, FIRST, ITERATIONS, LOOPS, SECOND, loop_value

pytestmark = pytest.mark.timeout(900)


def test_iterations_of_two_loops_match_in_any_order(ranks: list) -> None:
    of_all_ranks = sum(10**rank for rank in range(len(ranks)))
    values = [[loop_value(loop, number) * of_all_ranks for number in range(ITERATIONS)] for loop in range(LOOPS)]
    assert all(rank["in_loops"]["sums"] == values for rank in ranks)


def test_loops_overtook_each_other_in_another_order_on_each_rank(ranks: list) -> None:
    """Otherwise the test above could not fail."""
    orders = [[tuple(place) for place in rank["in_loops"]["order"]] for rank in ranks]
    places = [(loop, number) for loop in range(LOOPS) for number in range(ITERATIONS)]
    assert all(sorted(order) == places for order in orders)
    for loop in range(LOOPS):
        of_loop = {tuple(number for other, number in order if other == loop) for order in orders}
        assert len(of_loop) == len(ranks)


def test_streams_do_not_wait_for_each_other(ranks: list) -> None:
    size = len(ranks)
    expected = [number * size + sum(range(size)) for number in range(50)]
    assert all(rank["streams"] == {"step": expected, "beside": expected} for rank in ranks)


def test_sessions_and_train_ops_alternate(ranks: list) -> None:
    size = len(ranks)
    first, second = ([size * (size + 1) / 2, number * size] for number in (10.0, 20.0))
    assert all(rank["sessions"]["found"] == [first, second, first] * 3 for rank in ranks)


def test_sessions_that_run_at_the_same_time_do_not_mix(ranks: list) -> None:
    size = len(ranks)
    expected = [number * size + sum(range(size)) for number in range(BESIDE)]
    for rank in ranks:
        assert rank["sessions_beside"]["one"] == expected
        assert rank["sessions_beside"]["other"] == [size * BESIDE_FIRST + value for value in expected]


@pytest.mark.parametrize("when", ["before", "after", "second_session", "back", "rewritten"])
def test_exchanges_match_although_one_rank_has_left_one_out(ranks: list, when: str) -> None:
    size = len(ranks)
    added = (FIRST, SECOND, FIRST, SECOND)
    expected = [size * (100.0 * number + one) + sum(range(size)) for number, one in enumerate(added)]
    assert all(rank["after_a_gap"][when] == expected for rank in ranks)


def test_the_rank_that_leaves_an_exchange_out_is_named(ranks: list) -> None:
    last = len(ranks) - 1
    assert ranks[last]["after_a_gap"]["gap"] == "no error"
    for rank in ranks[:-1]:
        assert "exchange «after_gap»" in rank["after_a_gap"]["gap"]
        assert f"rank {last} has ended its session.run without it" in rank["after_a_gap"]["gap"]
