"""What of a step overlaps, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_runner.planning.cost.critical_path import Travel, critical_path_secs

SHARES, SECS = st.floats(0, 1), st.floats(0, 10)
TRAVELS = st.lists(st.builds(Travel, SHARES, SECS, SHARES, SECS, SECS), max_size=5)


def test_what_is_needed_at_once_and_there_at_the_end_adds_up() -> None:
    assert critical_path_secs(10, [Travel(0.0, 2, 1.0, 3)]) == 15
    assert critical_path_secs(10, []) == 10


def test_what_is_needed_later_travels_meanwhile() -> None:
    # A softmax's rows come while the LSTM runs on the embedding's, and are there when 30 % is computed.
    embedding, softmax = Travel(0.0, 1, 1.0, 1), Travel(0.3, 2, 0.6, 2)
    assert critical_path_secs(10, [embedding, softmax]) == 1 + 10 + 1
    # Too slow a link holds up the computing: 5 s after the embedding's rows in place of 3.
    assert critical_path_secs(10, [embedding, Travel(0.3, 5, 0.6, 2)]) == pytest.approx(1 + 5 + 7 + 1)


def test_a_gradient_travels_after_those_before_it() -> None:
    early, late = Travel(0.0, 0, 0.5, 8), Travel(0.0, 0, 1.0, 1)
    assert critical_path_secs(10, [late, early]) == 5 + 8 + 1


def test_nobody_waits_for_what_belongs_to_another_step_unless_the_links_are_full() -> None:
    assert critical_path_secs(10, [Travel(0.0, 2, 1.0, 3, aside_secs=10)]) == 15
    assert critical_path_secs(10, [Travel(0.0, 2, 1.0, 3, aside_secs=11)]) == 16


@given(SECS, TRAVELS)
def test_it_is_between_the_longest_and_the_sum(compute: float, travels: list[Travel]) -> None:
    exchanged = sum(one.before_secs + one.after_secs + one.aside_secs for one in travels)
    found = critical_path_secs(compute, travels)
    assert max(compute, exchanged) - 1e-9 <= found <= compute + exchanged + 1e-9
