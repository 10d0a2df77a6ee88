import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from parallax_runner.launch.blame.first_death import Member, first_lost, reason_of
from parallax_runner.launch.control.activity import STARTING, Activity, Kind
from parallax_runner.launch.watch import silence

STEP_3 = Activity(Kind.STEP, 3)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def member(silent_secs: float, *, doing: Activity = STEP_3, pid: int | None = None) -> Member:
    one = Member("worker", 1, host=socket.gethostname(), said_hello=True, connected=True, pid=pid)
    one.silent_secs, one.doing = silent_secs, doing
    return one


def test_the_limit_leaves_time_within_the_time_out() -> None:
    early, late = member(7.9), member(8.1)
    silence.judge([early, late], 10.0)
    assert early.lost_secs is None
    assert late.lost_secs is not None
    assert reason_of(late) == "frozen: no sign of life for 8 s (train.hang_timeout_secs=10)"


def test_those_that_are_done_or_gone_or_not_there_yet_are_not_judged() -> None:
    done, gone, absent = member(99.0), member(99.0), member(99.0)
    done.done, gone.lost_secs, absent.connected = True, 1.0, False
    silence.judge([done, gone, absent], 10.0)
    assert (done.verdict, gone.verdict, absent.verdict) == (None, None, None)


def test_loading_tensorflow_is_no_freeze_but_being_stopped_is(sleeper: subprocess.Popen) -> None:
    starting = member(9.0, doing=STARTING, pid=sleeper.pid)
    silence.judge([starting], 10.0)
    assert starting.lost_secs is None
    sleeper.send_signal(signal.SIGSTOP)
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    silence.judge([starting], 10.0)
    assert "the process is stopped (SIGSTOP)" in reason_of(starting)


def test_a_start_that_never_ends_is_a_freeze() -> None:
    starting = member(silence.STARTING_SILENCE_SECS, doing=STARTING)
    silence.judge([starting], 10.0)
    assert starting.verdict is not None


def test_a_frozen_process_that_was_killed_for_it_is_blamed_for_the_freeze() -> None:
    frozen = member(9.0)
    silence.judge([frozen], 10.0)
    frozen.exit_status = -9
    follower = Member("worker", 0, said_hello=True, error="peer is gone")
    follower.lose(time.monotonic())
    assert first_lost([follower, frozen], None) is frozen
    assert reason_of(frozen).startswith("frozen")


def test_the_clock_stands_still_while_the_driver_is_stopped() -> None:
    code = (
        "import sys, time\n"
        "from parallax_runner.launch.watch.silence import AwakeClock\n"
        "clock = AwakeClock()\n"
        "start = time.monotonic()\n"
        "print('ready', flush=True)\n"
        "missed_secs = 0.0\n"
        "while missed_secs < 1.0 and time.monotonic() < start + 20.0:\n"
        "    time.sleep(0.1)\n"
        "    clock.tick()\n"
        "    missed_secs = time.monotonic() - start - clock.awake_secs\n"
        "print(missed_secs)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=40)
    # At most one of the 2.5 seconds counts.
    assert float(said) >= 1.0


@pytest.mark.parametrize(("hang_timeout_secs", "secs"), [(5.0, 60.0), (300.0, 300.0)])
def test_a_child_is_as_patient_as_the_driver(hang_timeout_secs: float, secs: float) -> None:
    assert silence.driver_silent_secs(hang_timeout_secs) == secs


@pytest.mark.parametrize(("hang_timeout_secs", "alive_secs"), [(60.0, 2.0), (5.0, 1.0), (2.0, 0.4)])
def test_signs_of_life_come_often_enough(hang_timeout_secs: float, alive_secs: float) -> None:
    assert silence.alive_secs(hang_timeout_secs) == pytest.approx(alive_secs)
