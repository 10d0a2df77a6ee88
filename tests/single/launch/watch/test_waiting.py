"""What is said while a run stops."""

import time

import pytest

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.watch.waiting import StopNotice, waiting_for


def in_step(step: int) -> Activity:
    return Activity(Kind.STEP, step)


def workers(*doing: Activity) -> list[Member]:
    return [Member("worker", index, doing=what) for index, what in enumerate(doing)]


def test_who_is_waited_for() -> None:
    some = workers(in_step(50), Activity(Kind.SAVING, 50), in_step(50), in_step(50))
    assert waiting_for(some) == "workers 0, 2–3 (step 50), worker 1 (saving step 50)"
    some[1].done = True
    some[3].lose(time.monotonic())
    assert waiting_for(some) == "workers 0, 2 (step 50)"
    for one in some:
        one.done = True
    assert waiting_for(some) == ""


def test_many_that_differ_are_not_all_named() -> None:
    told = waiting_for(workers(*(in_step(number) for number in range(64))))
    assert told.endswith("worker 3 (step 3), and 60 more")


def test_it_is_said_again_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    notice = StopNotice("SIGHUP")
    for waited_for in ("worker 0 (step 7)", "worker 0 (step 7)", "", "worker 0 (saving step 7)"):
        notice.show(waited_for)
    assert capsys.readouterr().err.splitlines() == [
        "parallax_runner: SIGHUP: stopping: waiting for worker 0 (step 7); a second signal ends the run at once",
        "parallax_runner: stopping: waiting for worker 0 (saving step 7)",
    ]
