import signal
import subprocess
import sys
import time

import pytest

from parallax_runner.launch.interrupts import Interrupted, Interrupts

SELF = "import os, signal, time\nfrom parallax_runner.launch.interrupts import Interrupted, Interrupts\n"


def press(number: int = signal.SIGINT) -> None:
    signal.raise_signal(number)


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_raises_at_once_and_the_same_press_twice_does_not(number: int, exit_status: int) -> None:
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


def test_supervised_signals_are_only_noted() -> None:
    with Interrupts() as interrupts, interrupts.supervised():
        press()
        assert (interrupts.received, interrupts.again) == (True, False)
        time.sleep(0.6)
        press()
        assert interrupts.again


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
    assert process.wait(10) == 130
