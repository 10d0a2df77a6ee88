"""When a training ends because its validations find nothing better."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from parallax_runner.checkpoints.best import note_validated
from parallax_runner.checkpoints.checkpoint_files import Sidecar, prefix_of, sidecar_path
from parallax_runner.config.frozen import from_plain
from parallax_runner.config.objective import VALIDATION_LOSS, Goal
from parallax_runner.driver.epochs import Epochs
from parallax_runner.driver.patience import Patience, epochs_of
from parallax_runner.track.progress import ProgressDisplay
from parallax_runner.track.run_record import RunRecord
from parallax_runner.track.tracker import NoTracker


def record(workers: int = 1) -> RunRecord:
    display = ProgressDisplay(steps=9, log_every=1)
    goal = Goal("auc", "auc", "maximize")
    return RunRecord(workers, 9, 1, 8, None, NoTracker(), display, goal=goal)


def ends_after(values: list[float | None], most: int) -> int | None:
    """The number of validations after which it ends; None: it goes on."""
    patience = Patience(record(), most)
    for number, value in enumerate(values):
        patience.record.validation = {} if value is None else {"validation/auc": value}
        patience.begin(number)
        patience.end(number, number + 1)
        if patience.stops:
            return number + 1
    return None


@pytest.mark.parametrize(
    ("values", "most", "expected"),
    [
        ([0.5, 0.6, 0.6, 0.55], 2, 4),
        ([0.5, 0.6, 0.6, 0.55], 3, None),
        ([0.5, 0.4, 0.6, 0.5], 2, None),
        ([0.5, math.nan], 1, 2),
        ([math.nan, None, 0.1], 3, None),
        ([0.5, 0.4], 1, 2),
    ],
)
def test_so_many_in_a_row(values: list[float | None], most: int, expected: int | None) -> None:
    assert ends_after(values, most) == expected


def saved(folder: Path, step: int) -> Path:
    """A checkpoint after `step` steps, of which only the sidecar matters here."""
    prefix = prefix_of(folder, step)
    sidecar_path(prefix).write_text(Sidecar(step, 8 * step, 1, "f", None).text())
    return prefix


def gone_on(folder: Path, step: int, *, position: str = "auto") -> tuple[Patience, Epochs]:
    """What a run with patience for three validations, one every two steps, knows when it resumes at `step`."""
    config = {"action": "train", "train": {"patience": 3, "validate_steps": 2}, "ckpt": {"position": position}}
    make = epochs_of(from_plain(config))
    assert make is not None
    epochs = make(record(), saved(folder, step))
    assert isinstance(epochs.calls, Patience)
    return epochs.calls, epochs


@pytest.mark.parametrize(("step", "missing"), [(4, 3), (6, 2), (7, 2), (8, 1)])
def test_a_resumed_run_counts_the_validations_before(step: int, missing: int, tmp_path: Path) -> None:
    """The best validation was after step 4."""
    for number, value in {2: 0.5, 4: 0.6, 6: 0.55, 8: 0.6}.items():
        if number <= step:
            saved(tmp_path, number)
            note_validated(tmp_path, number, value, record().goal)
    patience, _ = gone_on(tmp_path, step)
    ends = 0
    while not patience.stops:
        patience.record.validation = {"validation/auc": 0.6}
        patience.end(ends, 0)
        ends += 1
    assert ends == missing


def test_a_run_whose_training_has_ended_trains_no_further_step(tmp_path: Path) -> None:
    for number, value in {2: 0.5, 4: 0.4, 6: 0.5, 8: 0.3}.items():
        saved(tmp_path, number)
        note_validated(tmp_path, number, value, record().goal)
    _, epochs = gone_on(tmp_path, 8)
    told = epochs.on_segment(0, 8, [])
    assert told is not None and told["ends"]
    patience, epochs = gone_on(tmp_path, 8, position="start")
    told = epochs.on_segment(0, 8, [])
    assert told is not None and not told["ends"] and not patience.stops


def test_values_of_another_objective_are_not_compared(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    note_validated(tmp_path, 2, 0.1, VALIDATION_LOSS)
    note_validated(tmp_path, 8, 0.2, VALIDATION_LOSS)
    patience, _ = gone_on(tmp_path, 8)
    assert not patience.stops and patience == Patience(patience.record, 3)


def test_all_ranks_are_told_to_end() -> None:
    config = {"action": "train", "train": {"patience": 1, "validate_steps": 3}}
    make = epochs_of(from_plain(config))
    assert make is not None and epochs_of(from_plain(config | {"action": "verify"})) is None
    found = record(workers=2)
    epochs = make(found, None)

    def order(step: int) -> dict[str, object] | None:
        assert epochs.on_segment(0, step, []) is None
        return epochs.on_segment(1, step, [])

    assert order(0) == {"plan": None, "until": 3, "is_last": False, "ends": False, "learning_rates": {}}
    found.validation = {"validation/auc": 0.6}
    assert order(3) == {"plan": None, "until": 6, "is_last": False, "ends": False, "learning_rates": {}}
    found.validation = {"validation/auc": 0.5}
    told = order(6)
    assert told is not None and told["ends"]
