"""When an attempt ends so that more workers can start, and how many restarts a run with other numbers may have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.config.worker_numbers import ClusterSize
from parallax_runner.driver import resizing
from parallax_runner.driver.recovery import Restarts
from parallax_runner.driver.resizing import Resizing
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.launchers.membership import Membership
from parallax_runner.launch.processes import RunResult

NUMBERS = (1, 2, 4)
SERVERS = 1


class Counted(Membership):
    """Has as many workers as a test says, and counts the questions."""

    def __init__(self, workers: int) -> None:
        self.there, self.asked, self.closed = workers, 0, 0

    def available(self, wait_secs: float, stopped: Callable[[], bool]) -> ClusterSize:
        """Returns the largest size, without waiting."""
        return ClusterSize(max(number for number in NUMBERS if number <= self.there), SERVERS)

    def has_more(self, running: ClusterSize) -> bool:
        """Returns whether there are more."""
        self.asked += 1
        return self.available(0.0, lambda: False).workers > running.workers

    def close(self) -> None:
        """Counts the call."""
        self.closed += 1


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Counted:
    made = Counted(2)
    launcher = SimpleNamespace(membership=lambda *_: made)
    monkeypatch.setattr(resizing, "launcher_class", lambda _: launcher)
    return made


def begun(members: Counted, stack: ExitStack | None = None) -> Resizing:
    """A run of as many workers as there are, whose attempt begins."""
    cluster = SimpleNamespace(wait_secs=0.0, workers=members.there, servers=SERVERS, resource_info=None)
    config = SimpleNamespace(cluster=cluster)
    request: Any = SimpleNamespace(config=config, interrupts=SimpleNamespace(received=False))
    plan = SimpleNamespace(worker_numbers=NUMBERS, workers=members.there)
    prepared: Any = SimpleNamespace(planned=SimpleNamespace(plan=plan), config=config)
    made = Resizing(request, stack or ExitStack())
    assert made.before_attempt(prepared) is prepared
    return made


def test_the_end_of_a_run_ends_what_its_questions_have_begun(members: Counted) -> None:
    with ExitStack() as stack:
        begun(members, stack)
        before = members.closed
    assert members.closed == before + 1


def test_more_workers_are_taken_in_after_a_checkpoint_only(members: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "BETWEEN_SECS", 0.0)
    found = begun(members)
    members.there = 4
    assert not found.ends_early() and members.asked == 0
    found.on_checkpoint()
    assert found.ends_early()


def test_an_attempt_that_ends_early_stays_so(members: Counted) -> None:
    found = begun(members)
    members.there = 4
    found.on_checkpoint()
    assert found.ends_early()
    members.there = 1
    assert found.ends_early() and members.asked == 1, "the workers have been asked to end"


def test_the_members_are_not_asked_all_the_time(members: Counted) -> None:
    found = begun(members)
    found.on_checkpoint()
    assert [found.ends_early() for _ in range(5)] == [False] * 5
    assert members.asked == 1


def test_a_number_that_does_not_fit_ends_nothing(members: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "BETWEEN_SECS", 0.0)
    found = begun(members)
    members.there = 3
    found.on_checkpoint()
    assert not found.ends_early()


def test_other_runs_are_never_asked() -> None:
    plan = SimpleNamespace(worker_numbers=(), workers=2)
    prepared: Any = SimpleNamespace(planned=SimpleNamespace(plan=plan))
    request: Any = None
    made = Resizing(request, ExitStack())
    assert made.before_attempt(prepared) is prepared
    made.on_checkpoint()
    assert not made.ends_early()


@pytest.mark.parametrize("is_elastic", [True, False])
def test_a_run_that_makes_progress_survives_more_losses_than_it_may_have_in_a_row(is_elastic: bool) -> None:
    restarts = Restarts(2, is_elastic=is_elastic)
    lost = Failure("worker", 1, "n1", "died", ())
    result = RunResult("failed", 1, lost)
    for _ in range(2):
        assert restarts.failure_to_retry(result, was_stopped=False) is lost
        restarts.count(lost)
    assert restarts.failure_to_retry(result, was_stopped=False) is None
    restarts.on_checkpoint()
    assert (restarts.failure_to_retry(result, was_stopped=False) is lost) == is_elastic
    assert restarts.all == 2
