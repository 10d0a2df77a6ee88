"""Batches made ahead, in a thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from parallax_runner.train.prefetch import AHEAD, Batches, Prefetch


def numbered(number: int) -> Batches:
    return {"number": np.array([number])}


def test_all_come_in_order() -> None:
    with Prefetch(numbered, 20) as batches:
        assert [int(batches.next()["number"][0]) for _ in range(20)] == list(range(20))


def test_they_are_made_before_they_are_asked_for_but_not_many() -> None:
    made: list[int] = []
    enough = threading.Event()

    def make(number: int) -> Batches:
        made.append(number)
        if number == AHEAD:
            enough.set()  # one more than fits waits in the maker's hand
        return numbered(number)

    with Prefetch(make, 100):
        assert enough.wait(10)
    assert made == list(range(AHEAD + 1))


def test_none_is_made_for_steps_that_there_are_not() -> None:
    made: list[int] = []
    with Prefetch(lambda number: made.append(number) or numbered(number), 3) as batches:
        for _ in range(3):
            batches.next()
    assert made == [0, 1, 2]


def test_what_is_skipped_is_not_waited_for() -> None:
    made: list[int] = []
    with Prefetch(lambda number: made.append(number) or numbered(number), 1000) as batches:
        assert int(batches.next()["number"][0]) == 0
        assert int(batches.next(skip=900)["number"][0]) == 901
        assert int(batches.next()["number"][0]) == 902
    assert len(made) < 20


def test_a_look_at_the_next_one_takes_nothing() -> None:
    with Prefetch(numbered, 3) as batches:
        found = []
        while (ahead := batches.peek()) is not None:
            assert batches.peek() is ahead
            found.append(batches.next())
            assert found[-1] is ahead
    assert [int(one["number"][0]) for one in found] == [0, 1, 2]


def test_an_error_comes_in_its_turn() -> None:
    def make(number: int) -> Batches:
        if number == 1:
            raise OSError("gone")
        return numbered(number)

    with Prefetch(make, 5) as batches:
        batches.next()
        with pytest.raises(OSError, match="gone"):
            batches.next()


def test_leaving_early_ends_the_thread() -> None:
    with Prefetch(numbered, 1000) as batches:
        batches.next()
    assert not batches._thread.is_alive()
