"""Random command lines: each is run or refused. A refusal is one message that names a key of the line."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.chaos.command_lines import command_line
from tests.chaos.conftest import OUTCOME
from tests.integration.runs import launch
from tests.single.config.in_process import answer_of_hydra
from tests.single.config.test_generated_command_lines import fault_of

COUNT = 500
PER_TEST = 25
PROCESSES = 40


def fault(words: Sequence[str], done: subprocess.CompletedProcess[str]) -> str | None:
    """Returns what is wrong with the answer to a command line."""
    if done.returncode == 0 or fault_of(done) is not None:
        return fault_of(done)
    keys = {word.lstrip("~+").partition("=")[0] for word in words}
    return None if any(key in done.stderr for key in keys) else "no key is named"


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, id=f"{'more-' if first else ''}{first}") for first in range(0, COUNT, PER_TEST)],
)
def test_lines_are_run_or_refused(first: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Everything but the job itself: Hydra, all checks, and the notes."""
    record_property(OUTCOME, ("random command lines", f"{PER_TEST} of any action, without their jobs"))
    faults = {}
    for seed in range(first, first + PER_TEST):
        words = command_line(seed)
        done = answer_of_hydra(*words, cwd=tmp_path)
        if (found := fault(words, done)) is not None:
            faults[seed] = (found, words, done.stderr[-2000:])
    assert faults == {}


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"more-{seed}") for seed in range(1000, 1000 + PROCESSES)])
def test_a_plan(seed: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """A process: whatever was composed is also planned, or refused in one message."""
    record_property(OUTCOME, ("random command lines", "action=plan"))
    words = [word for word in command_line(seed, action="plan") if word not in ("-m", "--multirun")]
    run = launch(*words, "tracking=off", cwd=tmp_path)
    assert "Traceback" not in run.stderr, run.stderr
    assert run.exit_status in (0, 2), run.stderr
    if run.exit_status == 2:
        assert re.search(r"^parallax_runner: ", run.stderr, re.M), run.stderr
    run.expect_nothing_started()


def test_a_key_that_a_sweep_varies_is_given_once(tmp_path: Path) -> None:
    """Otherwise all jobs would be the same, or would have the same folder."""
    for words in (("train.seed=1,2", "train.seed=0"), ("comm=mpi", "comm=mpi,ps")):
        done = answer_of_hydra("model=simple", *words, "-m", cwd=tmp_path)
        swept = next(word for word in words if "," in word)
        other = next(word for word in words if "," not in word)
        assert done.returncode == 2
        assert f"{swept} (command line): {other} sets the same key; omit one of them" in done.stderr
