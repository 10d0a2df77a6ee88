"""Deltas that all ranks write have exactly the rows that steps have written, and the values of their step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.checkpoints.checkpoint_files import step_of
from parallax_runner.checkpoints.delta_files import values_of
from parallax_runner.checkpoints.delta_merge import with_delta
from parallax_runner.checkpoints.delta_start import find_state
from tests.growing_keys import bucket_of
from tests.parallel.delta_worker import DELTA_STEPS, WAYS
from tests.parallel.saving_worker import GROWING, PARTITIONED, TABLES
from tests.parallel.test_saving_by_ranks import Values, expect_same, expected, launched, values
from tests.shared import shared

pytestmark = pytest.mark.timeout(900)

RANKS = (2, pytest.param(3, id="more-3"))
BASES = {4: 2, 7: 2, 12: 9}
ROWS = f"{GROWING}/rows"


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder with the deltas that so many ranks have written."""

    def of(ranks: int) -> Path:
        def write(folder: Path) -> Path:
            result = launched(folder, ranks, [{"name": "saved"}], module="tests.parallel.delta_worker")
            told = "\n".join(result.failure.last_lines) if result.failure else ""
            assert result.status == "finished", f"{result.failure}\n{told}"
            return folder

        return shared(tmp_path_factory, f"deltas_by_{ranks}", write) / "saved"

    return of


def is_slot(name: str) -> bool:
    return name.endswith("/Momentum")


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("step", DELTA_STEPS)
@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_with_its_delta_has_the_values_of_the_step(
    way: str, step: int, ranks: int, saved: Callable[[int], Path], tmp_path: Path
) -> None:
    folder = saved(ranks)
    found = find_state("auto", folder / way / f"at_{step}")
    base, delta = found.start.prefix, found.delta
    assert base is not None and delta is not None and not found.start.notes
    assert (step_of(base), delta.step, delta.examples) == (BASES[step], step, step)
    merged = values(with_delta(base, delta, tmp_path / "merged"))
    wanted, of_base = expected(folder, f"{way}_{step}"), values(base)
    slots = {name: value.astype(np.float64) for name, value in of_base.items() if is_slot(name)}
    assert slots
    expect_same(merged, wanted | slots)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("step", DELTA_STEPS)
@pytest.mark.parametrize("way", WAYS)
def test_a_delta_has_the_rows_that_steps_have_written(
    way: str, step: int, ranks: int, saved: Callable[[int], Path]
) -> None:
    folder = saved(ranks)
    found = find_state("auto", folder / way / f"at_{step}")
    assert found.start.prefix is not None and found.delta is not None
    changed = values(values_of(found.start.prefix, found.delta))
    assert not [name for name in changed if is_slot(name)]
    ids = np.array(json.loads((folder / "ids.json").read_text())[str(step)])
    rows = {name: shape[0] for name, (shape, _) in TABLES.items()} | {PARTITIONED: 29}
    for name, count in rows.items():
        written = np.unique(ids % count)
        np.testing.assert_array_equal(np.sort(changed[f"{name}:places"]), written, err_msg=name)
        assert found.delta.rows[name] == len(written)
    np.testing.assert_array_equal(np.sort(changed[f"{ROWS}:places"]), rows_of(ids, expected(folder, f"{way}_{step}")))


def rows_of(ids: np.ndarray, saved: Values) -> np.ndarray:
    """Returns the rows of keys: those of the map, or those that the keys of a full bucket share."""
    keys, fill = saved[f"{GROWING}/keys"], saved[f"{GROWING}/fill"]
    places = keys.shape[1]
    is_taken = np.arange(places) < fill[:, np.newaxis]
    own = is_taken & np.isin(keys, ids)
    without = set(ids.tolist()) - set(keys[is_taken].astype(int).tolist())
    shared_rows = {1024 * places + bucket_of(key) for key in without}
    return np.sort(np.array([*np.flatnonzero(own), *shared_rows]))


@pytest.mark.parametrize("ranks", RANKS)
def test_the_folder_has_nothing_but_checkpoints_and_the_last_delta_of_each(
    ranks: int, saved: Callable[[int], Path]
) -> None:
    for way in WAYS:
        folder = saved(ranks) / way / "at_12"
        starts = ("checkpoint", "model.ckpt-2.", "model.ckpt-9.")
        names = sorted(path.name for path in folder.iterdir())
        assert all(name.startswith(starts) for name in names), names
        deltas = {name.partition(".delta")[2].partition(".")[0] for name in names if ".delta-" in name}
        assert deltas == {"-7-2", "-12-1"}
