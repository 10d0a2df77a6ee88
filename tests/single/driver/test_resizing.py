"""When an attempt ends so that more workers can start, and how many restarts a run with other numbers may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.driver import resizing
from parallax_runner.driver.recovery import Restarts
from parallax_runner.driver.resizing import Resizing
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.launchers.resizable import ResizableLauncher
from parallax_runner.launch.processes import RunResult

NUMBERS = (1, 2, 4)


class Counted(ResizableLauncher):
    """Has as many workers as a test says, and counts the questions."""

    def __init__(self, workers: int) -> None:
        self.there, self.asked = workers, 0

    def workers(self, *_: Any) -> list[Any]:
        """Not called, because nothing starts."""
        return []

    def available(self, numbers: Sequence[int], wait_secs: float, stopped: Callable[[], bool]) -> int:
        """Returns the largest number, without waiting."""
        return max(number for number in numbers if number <= self.there)

    def has_more(self, numbers: Sequence[int], running: int) -> bool:
        """Returns whether there are more."""
        self.asked += 1
        return self.available(numbers, 0.0, lambda: False) > running


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Counted:
    made = Counted(2)
    monkeypatch.setattr(resizing, "launcher_of", lambda *_: made)
    return made


def begun(launcher: Counted) -> Resizing:
    """A run of as many workers as there are, whose attempt begins."""
    cluster = SimpleNamespace(wait_secs=0.0)
    request: Any = SimpleNamespace(config=SimpleNamespace(cluster=cluster), interrupts=SimpleNamespace(received=False))
    plan = SimpleNamespace(worker_numbers=NUMBERS, workers=launcher.there)
    prepared: Any = SimpleNamespace(planned=SimpleNamespace(plan=plan), config=None)
    made = Resizing(request, ExitStack())
    assert made.before_attempt(prepared) is prepared
    return made


def test_more_workers_are_taken_in_after_a_checkpoint_only(launcher: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "BETWEEN_SECS", 0.0)
    found = begun(launcher)
    launcher.there = 4
    assert not found.ends_early() and launcher.asked == 0
    found.on_checkpoint()
    assert found.ends_early()


def test_an_attempt_that_ends_early_stays_so(launcher: Counted) -> None:
    found = begun(launcher)
    launcher.there = 4
    found.on_checkpoint()
    assert found.ends_early()
    launcher.there = 1
    assert found.ends_early() and launcher.asked == 1, "the workers have been asked to end"


def test_the_launcher_is_not_asked_all_the_time(launcher: Counted) -> None:
    found = begun(launcher)
    found.on_checkpoint()
    assert [found.ends_early() for _ in range(5)] == [False] * 5
    assert launcher.asked == 1


def test_a_number_that_does_not_fit_ends_nothing(launcher: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "BETWEEN_SECS", 0.0)
    found = begun(launcher)
    launcher.there = 3
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
