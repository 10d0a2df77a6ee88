"""Ranks that write a delta together are killed at random moments: the delta before remains, or the new one is whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.checkpoints.checkpoint_files import step_of
from parallax_runner.checkpoints.delta_merge import with_delta
from parallax_runner.checkpoints.delta_start import find_state
from parallax_runner.checkpoints.publish import prepare
from parallax_runner.checkpoints.start import find_start
from tests.chaos.conftest import OUTCOME
from tests.parallel.delta_worker import BEFORE, LAST
from tests.parallel.test_deltas_by_ranks import is_slot
from tests.parallel.test_saving_by_ranks import expect_same, expected, launched, values

pytestmark = pytest.mark.timeout(1800)

KILLS = 20
# A kill comes at most so much later than the delta is expected to be written.
MOST_SHARE = 1.2


@dataclass(frozen=True)
class Kill:
    """One of the `ranks` is killed at a moment of a delta, given as a share of the time that a delta takes."""

    seed: int
    ranks: int
    victim: int
    share: float

    @classmethod
    def drawn(cls, seed: int) -> Kill:
        draw = random.Random(seed)
        ranks = draw.choice([2, 3])
        return cls(seed, ranks, draw.choice([0, ranks - 1]), draw.uniform(0, MOST_SHARE))


@pytest.mark.parametrize("kill", [Kill.drawn(seed) for seed in range(KILLS)], ids=lambda kill: f"seed_{kill.seed}")
def test_the_checkpoint_and_a_whole_delta_remain(
    kill: Kill, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property(OUTCOME, ("a rank of comm=sharded is killed", "while a delta is written"))
    order = {"name": "killed", "victim": kill.victim, "share": kill.share}
    assert launched(tmp_path, kill.ranks, [order], module="tests.parallel.delta_worker").status == "failed"
    folder = tmp_path / "killed" / "ckpt"
    step = expect_whole(folder, tmp_path / "at_once")
    partly = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
    print(f"{kill}: left {partly}, serves step {step}", flush=True)
    # The next run tidies the folder and resumes from the checkpoint.
    assert not prepare(folder)
    start = find_start("auto", folder)
    assert start.prefix is not None and step_of(start.prefix) == 2 and not start.notes
    assert expect_whole(folder, tmp_path / "tidied") == step
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def expect_whole(folder: Path, merged: Path) -> int:
    """Compares the values of the checkpoint and its delta with those of the step, and returns the step."""
    found = find_state("auto", folder)
    base, delta = found.start.prefix, found.delta
    assert base is not None and delta is not None and not found.start.notes
    assert delta.step in (BEFORE, LAST)
    slots = {name: value.astype(np.float64) for name, value in values(base).items() if is_slot(name)}
    expect_same(values(with_delta(base, delta, merged)), expected(folder.parent, str(delta.step)) | slots)
    return delta.step
