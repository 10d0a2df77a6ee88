"""When no step ends: what counts as a stall, what does not, and who is said to wait for whom."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.collectives.backend import Awaited
from parallax_runner.launch.attempt import Attempt
from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.job import Job
from parallax_runner.launch.watch.stall import StallWatch, describe_stall
from parallax_runner.launch.watch.whereabouts import SESSION_RUN, Place, python_in_graph

START_SECS = 300.0
IN_SESSION = Place(SESSION_RUN, "train/loop.py:190 _run_once")
LAST_STEPS = Activity(Kind.LAST_STEPS)
STEP_50 = Activity(Kind.STEP, 50)


def in_step(step: int) -> Activity:
    return Activity(Kind.STEP, step)


def worker(index: int, doing: Activity = STEP_50, *, step: int | None = 49, where: Place | None = IN_SESSION) -> Member:
    return Member("worker", index, said_hello=True, connected=True, doing=doing, step=step, where=where)


class Run:
    """Two workers that are watched; `pass_secs` lets time go by without the end of a step."""

    def __init__(self, timeout_secs: float | None = None, step_secs: float = 1.0, steps: int = 5) -> None:
        self.watch = StallWatch(start_secs=START_SECS, timeout_secs=timeout_secs)
        self.workers = [worker(index, in_step(1), step=None) for index in range(2)]
        for step in range(steps):
            self.pass_secs(step_secs)
            for one in self.workers:
                one.doing, one.step = in_step(step + 2), step + 1
        self.pass_secs(0.0)

    def pass_secs(self, secs: float) -> None:
        for _ in range(10):
            self.watch.look(self.workers, secs / 10)

    def do(self, what: Activity) -> None:
        for one in self.workers:
            one.doing = what

    @property
    def news(self) -> str | None:
        return self.watch.news(self.workers, together=True)


@pytest.mark.parametrize(("step_secs", "limit_secs"), [(1.0, 30.0), (5.0, 50.0)])
def test_ten_median_steps_and_at_least_thirty_seconds(step_secs: float, limit_secs: float) -> None:
    run = Run(step_secs=step_secs)
    run.pass_secs(limit_secs - 1)
    assert not run.watch.is_due
    run.pass_secs(2)
    assert run.watch.is_due
    assert run.news == f"no step for {limit_secs + 1:.0f} s; workers 0–1 are in step 6"


def test_it_is_told_again_after_twice_the_time_and_when_steps_go_on() -> None:
    run = Run()
    run.pass_secs(31)
    assert str(run.news).startswith("no step for 31 s")
    run.pass_secs(30)
    assert not run.watch.is_due
    run.pass_secs(2)
    assert run.watch.is_due and str(run.news).startswith("no step for 63 s")
    run.workers[0].step = 6
    run.pass_secs(0.1)
    assert run.watch.is_due
    assert run.news == "steps are finishing again, after more than 63 s without one"
    assert not run.watch.is_due


@pytest.mark.parametrize(
    "doing",
    [
        *(Activity(Kind.STARTING), Activity(Kind.SAVING, 5), Activity(Kind.VALIDATION, 5), Activity(Kind.COMPARING)),
        *(Activity(Kind.COMMAND, 5), Activity(Kind.RESHARDING, 5), Activity(Kind.OTHER_SCRIPTS)),
    ],
)
def test_what_is_no_step_takes_as_long_as_it_takes(doing: Activity) -> None:
    run = Run(timeout_secs=60)
    run.workers[0].doing = doing
    if doing.waits:
        run.workers[1].doing = doing
    run.pass_secs(1000)
    assert not run.watch.is_due
    run.do(in_step(6))
    run.pass_secs(20)
    assert not run.watch.is_due


def test_the_first_step_may_take_as_long_as_the_start() -> None:
    run = Run(timeout_secs=60, steps=0)
    run.pass_secs(START_SECS - 1)
    assert not run.watch.is_due
    run.pass_secs(2)
    assert run.watch.is_over


def test_the_first_step_of_another_plan_is_a_first_one() -> None:
    run = Run(timeout_secs=60)
    run.watch.begin_again()
    run.pass_secs(START_SECS - 1)
    assert not run.watch.is_due


def test_the_time_out_comes_where_it_is_asked_for() -> None:
    run = Run(timeout_secs=20)
    run.pass_secs(19)
    assert not run.watch.is_over
    run.pass_secs(2)
    assert run.watch.is_over


def test_workers_that_are_done_or_gone_hold_up_nothing() -> None:
    run = Run()
    run.workers[0].done = True
    run.workers[1].connected = False
    run.pass_secs(1000)
    assert not run.watch.is_due


def test_without_synchronisation_one_worker_may_hang_while_others_go_on() -> None:
    run = Run()
    for step in range(6, 70):
        run.workers[0].doing, run.workers[0].step = in_step(step + 1), step
        run.pass_secs(1.0)
    assert run.watch.is_due
    news = run.watch.news(run.workers, together=False)
    assert news == "worker 1: no step for 64 s; worker 1 is in step 6; the others are making progress"
    assert not run.watch.is_due


def test_a_worker_that_hangs_in_its_first_step_alone_is_told_once() -> None:
    run = Run(steps=0)
    for step in range(1, 310):
        run.workers[0].doing, run.workers[0].step = in_step(step + 1), step
        run.pass_secs(1.0)
    assert run.watch.is_due
    news = run.watch.news(run.workers, together=False)
    assert news == "worker 1: no step for 309 s; worker 1 is in step 1; the others are making progress"
    assert not run.watch.is_due


def test_a_step_that_ends_before_the_notice_is_no_news() -> None:
    run = Run()
    run.pass_secs(31)
    assert run.watch.is_due
    run.workers[0].step = 6
    run.pass_secs(0.1)
    assert run.news is None
    assert not run.watch.is_due


def ask_stalled(run: Run, answer: int | None) -> Any:
    """An attempt that has been asked for its news of a stall. Its worker 0 answers that it has ended step `answer`."""

    def ask_where(*, stacks: bool) -> None:
        assert stacks
        run.workers[0].step = answer
        run.pass_secs(0.1)

    attempt: Any = Attempt.__new__(Attempt)
    attempt._stall, attempt._workers, attempt._servers = run.watch, run.workers, []
    attempt._program, attempt._run = Member("mpirun", 0), Member("run", 0)
    attempt._spec = SimpleNamespace(together=True, stall_timeout_secs=60.0)
    attempt._job = Job(run_dir=Path("r"), workers=len(run.workers))
    attempt.ask_where = ask_where
    attempt.news = attempt.stall_news()
    return attempt


def test_a_step_that_ends_after_the_time_out_and_before_the_answer_fails_nothing() -> None:
    run = Run(timeout_secs=60)
    run.pass_secs(31)
    assert "no step for 31 s" in str(run.news)
    run.pass_secs(30)
    assert run.watch.is_over
    attempt = ask_stalled(run, 6)
    assert attempt.news == "steps are finishing again, after more than 31 s without one"
    assert attempt.first_lost_secs() is None


def test_a_stall_after_the_time_out_is_a_failure() -> None:
    run = Run(timeout_secs=60)
    run.pass_secs(61)
    attempt = ask_stalled(run, 5)
    assert attempt.news.startswith("no step for 61 s; ") and "train.stall_timeout_secs=60" in attempt.news
    assert attempt.first_lost_secs() is not None


def test_a_worker_at_the_end_waits_for_one_that_hangs() -> None:
    run = Run()
    run.workers[0].doing = LAST_STEPS
    run.pass_secs(31)
    assert run.news == "no step for 31 s; worker 1 is in step 6, worker 0 is waiting for it"


@pytest.mark.parametrize("together", [True, False])
def test_python_code_in_the_graph_is_what_the_others_wait_for(together: bool) -> None:
    workers = [worker(index) for index in range(3)]
    workers[1].inside = "load in models.py:12"
    told = describe_stall(workers, together=together)
    if together:
        assert told == "worker 1 is in step 50 (load in models.py:12), workers 0, 2 are waiting for it"
    else:
        assert told == "workers 0, 2 are in step 50, worker 1 is in step 50 (load in models.py:12)"


def test_workers_whose_exchanges_wait_name_the_worker_that_holds_them_up() -> None:
    workers = [worker(index) for index in range(4)]
    for one, ranks in ((0, (1, 2)), (1, (2,)), (3, (2,))):
        workers[one].awaited = Awaited(ranks, "losses/sum")
    told = "worker 2 is in step 50, workers 0–1, 3 are waiting for it in the exchange «losses/sum»"
    assert describe_stall(workers, together=True) == told


def test_workers_that_wait_for_each_other_are_all_named() -> None:
    workers = [worker(index) for index in range(3)]
    workers[0].awaited, workers[1].awaited = Awaited((1,), "a"), Awaited((0,), "b")
    told = (
        "worker 0 is in step 50 (in the exchange «a»), worker 1 is in step 50 (in the exchange «b»), "
        "worker 2 is waiting for them"
    )
    assert describe_stall(workers, together=True) == told


def test_workers_that_wait_in_several_exchanges_name_each_once() -> None:
    workers = [worker(index) for index in range(4)]
    for one, exchange in enumerate(("a", "b", "a")):
        workers[one].awaited = Awaited((3,), exchange)
    told = "worker 3 is in step 50, workers 0–2 are waiting for it in the exchanges «a», «b»"
    assert describe_stall(workers, together=True) == told


def test_a_worker_that_is_a_step_behind_is_waited_for() -> None:
    workers = [worker(0, in_step(51), step=50), worker(1)]
    assert describe_stall(workers, together=True) == "worker 1 is in step 50, worker 0 is waiting for it"
    assert describe_stall(workers, together=False) == "worker 0 is in step 51, worker 1 is in step 50"


def test_a_worker_whose_python_stands_still_does_not_answer() -> None:
    workers = [worker(0), worker(1, where=None)]
    assert (
        describe_stall(workers, together=True)
        == "worker 1 is in step 50 and not responding, worker 0 is waiting for it"
    )


def test_workers_that_do_not_answer() -> None:
    workers = [worker(0, where=None), worker(1, where=None)]
    assert describe_stall(workers, together=True) == "workers 0–1 are in step 50 and not responding"


def test_a_worker_that_waits_for_its_data_is_waited_for() -> None:
    workers = [worker(0), worker(1, where=Place("queue.get", "train/prefetch.py:64 next"))]
    told = "worker 1 is in step 50 (queue.get in train/prefetch.py:64 next), worker 0 is waiting for it"
    assert describe_stall(workers, together=True) == told


def test_a_script_between_two_steps_is_waited_for() -> None:
    workers = [worker(0, Activity(Kind.SCRIPT, 49), where=Place("time.sleep")), worker(1)]
    told = "worker 0 is in the script, after step 49 (time.sleep), worker 1 is waiting for it"
    assert describe_stall(workers, together=True) == told


def test_who_is_slower_than_others_is_waited_for() -> None:
    workers = [worker(0, Activity(Kind.BEFORE_STEP, 52), step=51), worker(1)]
    assert describe_stall(workers, together=False) == "worker 1 is in step 50, worker 0 is waiting for it"


def test_the_python_function_of_an_op_is_found() -> None:
    # Compiled under the name of TensorFlow's file, because this test imports no TensorFlow.
    code = compile("def call(function):\n    function()\n", "/x/tensorflow/python/ops/script_ops.py", "exec")
    names: dict = {}
    exec(code, names)
    release, entered = threading.Event(), threading.Event()

    def load_for_ever() -> None:
        entered.set()
        while not release.is_set():
            pass

    thread = threading.Thread(target=names["call"], args=(load_for_ever,))
    assert python_in_graph() is None
    thread.start()
    entered.wait(10)
    found = python_in_graph()
    release.set()
    thread.join()
    assert found is not None
    assert found.startswith("load_for_ever in test_stall.py:")
