"""A process has one run at a time."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from parallax_runner.api.one_run import only_one_run
from parallax_runner.errors import LaunchError


def begin_and_end() -> None:
    with only_one_run("fit"):
        pass


def test_a_second_run_is_refused_until_the_first_one_has_ended() -> None:
    refused: list[str] = []

    def call() -> None:
        with pytest.raises(LaunchError) as raised:
            begin_and_end()
        refused.append(str(raised.value))

    with pytest.raises(ValueError), only_one_run("parallel_run"):
        thread = threading.Thread(target=call, name="second")
        thread.start()
        thread.join()
        call()
        raise ValueError
    assert refused[0].startswith(
        "fit was called in the thread 'second' while parallel_run still runs in the thread 'MainThread'"
    )
    assert len(refused) == 2
    begin_and_end()


def test_a_process_that_is_forked_during_a_run_may_have_one() -> None:
    with only_one_run("fit"):
        child = multiprocessing.get_context("fork").Process(target=begin_and_end)
        child.start()
        child.join(60)
    assert child.exitcode == 0
