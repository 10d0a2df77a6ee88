"""Ranks that write a checkpoint together are killed at random moments: no checkpoint is lost, and none is half."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.checkpoints.checkpoint_files import damage, list_checkpoints, step_of
from parallax_runner.checkpoints.publish import prepare
from parallax_runner.checkpoints.start import find_start
from tests.chaos.conftest import OUTCOME
from tests.parallel.saving_worker import GROWING, KILLED_STEPS
from tests.parallel.test_saving_by_ranks import Values, expect_same, expected, launch, launched, others_than, values

pytestmark = pytest.mark.timeout(1800)

KILLS = 40
# A kill comes at most so much later than the save is expected to end.
MOST_SHARE = 1.1
BEFORE, LAST = KILLED_STEPS[-2:]
AGAIN = 20
SLOTS = f"{GROWING}/rows/Momentum"


@dataclass(frozen=True)
class Kill:
    """One of the `ranks` is killed at a moment of a save, given as a share of the time that a save takes."""

    seed: int
    ranks: int
    victim: int
    share: float

    @classmethod
    def drawn(cls, seed: int) -> Kill:
        draw = random.Random(seed)
        ranks = draw.choice([2, 3])
        return cls(seed, ranks, draw.randrange(ranks), draw.uniform(0, MOST_SHARE))

    @property
    def name(self) -> str:
        return f"seed_{self.seed}"


@dataclass(frozen=True)
class Left:
    """The checkpoint that the next run begins with after a kill, and the values that it must have."""

    prefix: Path
    wanted: Values


EVERY = [Kill.drawn(seed) for seed in range(KILLS)]


class Killed:
    """What each kill leaves, and what another number of ranks makes of it."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self._make_folder = make_folder
        self.left = functools.cache(self._left)
        self.resumed = functools.cache(self._resumed)

    def _left(self, kill: Kill) -> Left:
        run_dir = self._make_folder("killed")
        order = {"name": kill.name, "start": None, "victim": kill.victim, "share": kill.share, "grows": True}
        assert launched(run_dir, kill.ranks, [order]).status == "failed"
        folder = run_dir / kill.name / "ckpt"
        partly = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
        assert not prepare(folder)
        start = find_start("auto", folder)
        assert start.prefix is not None and not start.notes
        step = step_of(start.prefix)
        print(f"{kill}: left {partly}, goes on at step {step}", flush=True)
        assert step in (BEFORE, LAST)
        return Left(start.prefix, expected(folder.parent, str(step)))

    def _resumed(self, ranks: int) -> Path:
        """The folder with what so many ranks have restored after all kills of another number of ranks. They have also
        saved it in the same folders."""
        run_dir = self._make_folder("resumed")
        kills = [kill for kill in EVERY if kill.ranks == others_than(ranks)]
        left = {kill: self.left(kill).prefix for kill in kills}
        launch(
            run_dir,
            ranks,
            [
                {"name": kill.name, "start": str(prefix), "again": str(prefix.parent), "step": AGAIN, "grows": True}
                for kill, prefix in left.items()
            ],
        )
        return run_dir


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(tmp_path_factory.mktemp)


@pytest.mark.parametrize("kill", EVERY, ids=lambda kill: kill.name)
def test_no_checkpoint_is_lost_or_half(
    kill: Kill, killed: Killed, record_property: Callable[[str, object], None]
) -> None:
    record_property(OUTCOME, ("a rank of comm=sharded is killed", "while all ranks write"))
    left = killed.left(kill)
    assert all(damage(prefix) is None for prefix in list_checkpoints(left.prefix.parent))
    expect_same(values(left.prefix), left.wanted)
    expect_whole_map(values(left.prefix))


def expect_whole_map(saved: Values) -> None:
    """Each key has one place, which the index finds, and each key that has been trained on has a row and a slot. The
    rows without a key have neither."""
    keys, index, fill, rows, slots = (
        saved[name] for name in (*(f"{GROWING}/{part}" for part in ("keys", "index", "fill", "rows")), SLOTS)
    )
    places = keys.shape[1]
    is_taken = np.arange(places) < fill[:, np.newaxis]
    assert len(np.unique(keys[is_taken])) == fill.sum() > 0
    np.testing.assert_array_equal(np.sort(index, axis=1)[:, -places:], np.where(is_taken, np.arange(places) + 1, 0))
    for values_of_rows in (rows, slots):
        of_keys = np.abs(values_of_rows[: fill.size * places]).max(axis=1)
        np.testing.assert_array_equal(of_keys > 0, is_taken.ravel())
    shared = np.abs(rows[fill.size * places :]).max(axis=1) > 0
    np.testing.assert_array_equal(shared, saved[f"{GROWING}/overflow"] > 0)


@pytest.mark.parametrize("kill", EVERY, ids=lambda kill: kill.name)
def test_another_number_of_ranks_goes_on(kill: Kill, killed: Killed) -> None:
    left = killed.left(kill)
    restored = killed.resumed(others_than(kill.ranks)) / kill.name
    assert json.loads((restored / "told.json").read_text()) == {"again": ""}
    with np.load(restored / "restored.npz") as file:
        expect_same(dict(file), left.wanted)
    newest = find_start("auto", left.prefix.parent).prefix
    assert newest is not None and step_of(newest) == AGAIN
    expect_same(values(newest), left.wanted)
