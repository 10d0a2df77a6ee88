import signal
import subprocess
import sys
import time

import pytest

from parallax_runner.launch.interrupts import Interrupted, Interrupts

SELF = "import os, signal, time\nfrom parallax_runner.launch.interrupts import Interrupted, Interrupts\n"


class Clock:
    """Replaces the module `time`. Its time changes only when a test sets it."""

    secs = 100.0

    def monotonic(self) -> float:
        return self.secs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("parallax_runner.launch.interrupts.time", made)
    return made


def press(number: int = signal.SIGINT) -> None:
    signal.raise_signal(number)


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_raises_at_once_and_the_same_press_twice_does_not(
    number: int, exit_status: int, clock: Clock
) -> None:
    with Interrupts() as interrupts:
        with pytest.raises(Interrupted):
            press(number)
        press(number)
        assert (interrupts.received, interrupts.again, interrupts.exit_status) == (True, False, exit_status)


def test_an_exception_handler_does_not_swallow_it() -> None:
    with Interrupts(), pytest.raises(Interrupted):
        try:
            press()
        except Exception:
            pytest.fail("swallowed")


def test_supervised_signals_are_only_noted(clock: Clock) -> None:
    with Interrupts() as interrupts, interrupts.supervised():
        press()
        assert (interrupts.received, interrupts.again) == (True, False)
        clock.secs += 0.6
        press()
        assert interrupts.again


def test_losing_the_terminal_twice_is_losing_it_once(clock: Clock) -> None:
    """The shell and the kernel both send SIGHUP, whenever each of them notices."""
    with Interrupts() as interrupts:
        with pytest.raises(Interrupted):
            press(signal.SIGHUP)
        clock.secs += 0.6
        press(signal.SIGHUP)  # would end this process
        assert (interrupts.exit_status, interrupts.signal_name, interrupts.again) == (129, "SIGHUP", False)


def test_the_end_of_a_session_is_one_press(clock: Clock) -> None:
    """A session manager sends SIGTERM to what has got SIGHUP as the terminal was closed."""
    with Interrupts() as interrupts, interrupts.supervised():
        press(signal.SIGHUP)
        clock.secs += 0.6
        press(signal.SIGTERM)
        assert (interrupts.again, interrupts.exit_status) == (False, 143)
        press(signal.SIGTERM)
        assert not interrupts.again
        clock.secs += 0.6
        press(signal.SIGTERM)
        assert interrupts.again


def test_sighup_that_is_ignored_stays_ignored() -> None:
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            press(signal.SIGHUP)
            assert not interrupts.received
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            with pytest.raises(Interrupted):
                press(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_supervising_driver_that_is_held_up_ends_by_another_press() -> None:
    code = (
        "import itertools, time, types\n"
        "from parallax_runner.launch import interrupts\n"
        "interrupts.FORCED_END_SECS = 0.5\n"
        "interrupts.time = types.SimpleNamespace(monotonic=itertools.count().__next__)  # 1 s between presses\n"
        "with interrupts.Interrupts() as own, own.supervised():\n"
        "    for _ in range(1000):\n"
        "        print(own.received, own.again, flush=True)\n"
        "        time.sleep(0.05)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "False False\n"
    for state in ("True False\n", "True True\n"):
        process.send_signal(signal.SIGINT)
        assert state in process.stdout
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_what_is_held_ends_first() -> None:
    ended = []
    with Interrupts() as interrupts:
        with pytest.raises(Interrupted), interrupts.held():
            press()
            ended.append(1)
        assert ended
        with interrupts.held():
            ended.append(2)
    assert ended == [1, 2]


def test_brief_work_is_done_before_a_second_press_ends_the_process() -> None:
    script = (
        SELF
        + """
with Interrupts() as interrupts:
    with interrupts.brief():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.6)
        os.kill(os.getpid(), signal.SIGINT)
        print("whole", flush=True)
    print("never")
"""
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("whole\n", 128 + signal.SIGTERM), done.stderr


def test_the_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_press_ends_a_process_that_works_alone() -> None:
    code = (
        f"{SELF}with Interrupts():\n"
        "    try:\n"
        "        print('ready', flush=True); time.sleep(60)\n"
        "    except Interrupted:\n"
        "        print('closing', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "closing\n"
    time.sleep(0.6)
    process.send_signal(signal.SIGINT)
    assert process.wait(50) == 130
