"""The checkpoint with the lowest validation loss is known, kept and found."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_runner.checkpoints.best import (
    Best,
    best_checkpoint,
    fault_of_best,
    forget_later,
    not_to_forget,
    note_validated,
    read_best,
)
from parallax_runner.errors import CheckpointError
from tests.single.checkpoints.test_checkpoint_files import partial, written


def noted(folder: Path, losses: dict[int, float]) -> Path:
    for step, loss in losses.items():
        if step:
            written(folder, step)
        note_validated(folder, step, loss)
    return folder


def test_the_lowest_is_the_best(tmp_path: Path) -> None:
    noted(tmp_path, {10: 3.0, 20: 2.0, 30: 2.5})
    assert read_best(tmp_path) == Best(validated_step=30, step=20, value=2.0)
    assert best_checkpoint(tmp_path) == tmp_path / "model.ckpt-20"


def test_the_first_of_equals_stays(tmp_path: Path) -> None:
    assert best_checkpoint(noted(tmp_path, {10: 2.0, 20: 2.0})) == tmp_path / "model.ckpt-10"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_the_best(tmp_path: Path, loss: float) -> None:
    assert best_checkpoint(noted(tmp_path, {10: loss})) is None
    assert best_checkpoint(noted(tmp_path, {20: 5.0, 30: loss})) == tmp_path / "model.ckpt-20"
    assert read_best(tmp_path).validated_step == 30  # type: ignore[union-attr]


def test_a_model_that_is_not_saved_does_not_count(tmp_path: Path) -> None:
    noted(tmp_path, {10: 3.0})
    note_validated(tmp_path, 15, 1.0)
    assert best_checkpoint(tmp_path) == tmp_path / "model.ckpt-10"
    partial(tmp_path, 20)  # Being written.
    note_validated(tmp_path, 20, 2.0)
    assert best_checkpoint(tmp_path) is None  # Not there yet.
    assert not_to_forget(tmp_path, set()) == {20}


def test_nothing_validated(tmp_path: Path) -> None:
    assert read_best(tmp_path) is None
    assert best_checkpoint(tmp_path) is None
    assert not_to_forget(tmp_path, {7}) == {7}
    forget_later(tmp_path, 0)


def test_results_that_are_not_in_yet_protect(tmp_path: Path) -> None:
    noted(tmp_path, {10: 3.0, 20: 4.0})
    assert not_to_forget(tmp_path, {10, 20, 30, 40}) == {10, 30, 40}


@pytest.mark.parametrize(
    ("step", "left"),
    [
        (30, Best(30, 20, 2.0)),
        (40, Best(30, 20, 2.0)),
        (25, Best(25, 20, 2.0)),
        (20, Best(20, 20, 2.0)),
        (10, None),
        (0, None),
    ],
)
def test_what_comes_after_the_start_is_taken_back(tmp_path: Path, step: int, left: Best | None) -> None:
    """A fresh run in a used folder, or one that goes back behind a damaged checkpoint, does these steps again."""
    noted(tmp_path, {10: 3.0, 20: 2.0, 30: 2.5})
    forget_later(tmp_path, step)
    assert read_best(tmp_path) == left


UNUSABLE = {
    "empty": "",
    "half": "{",
    "a list": "[]",
    "other fields": '{"step": 1}',
    "text for a step": '{"validated_step": "7", "step": null, "validation_loss": null}',
    "a negative step": '{"validated_step": -1, "step": null, "validation_loss": null}',
    "a loss that is not finite": '{"validated_step": 7, "step": 7, "validation_loss": NaN}',
    "a loss beyond floats": f'{{"validated_step": 7, "step": 7, "validation_loss": {"9" * 400}}}',
    "a step beyond file names": f'{{"validated_step": 7, "step": {"9" * 400}, "validation_loss": 1.5}}',
    "more digits than Python reads": f'{{"validated_step": {"9" * 5000}, "step": null, "validation_loss": null}}',
    "a best without a loss": '{"validated_step": 7, "step": 7, "validation_loss": null}',
    "deep": "[" * 100_000,
    "no text": "\udcff",
}
IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: (path / "full").mkdir(parents=True),
    "a loop": lambda path: path.symlink_to(path.name),
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    **{
        name: lambda path, text=text: path.write_text(text, errors="surrogateescape")  # type: ignore[misc]
        for name, text in UNUSABLE.items()
    },
}


@pytest.mark.parametrize("make", IN_ITS_PLACE.values(), ids=IN_ITS_PLACE)
def test_an_unusable_file_is_named_and_replaced(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """Nothing depends on it: a run goes on, and the next validation begins anew."""
    make(tmp_path / "best.json")
    assert str(fault_of_best(tmp_path)).startswith(f"{tmp_path / 'best.json'} is unusable: ")
    assert best_checkpoint(tmp_path) is None
    assert not_to_forget(tmp_path, {7}) == {7}
    forget_later(tmp_path, 0)
    noted(tmp_path, {10: 3.0})
    assert fault_of_best(tmp_path) is None
    assert best_checkpoint(tmp_path) == tmp_path / "model.ckpt-10"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere/best\.json could not be written: No such file"):
        note_validated(tmp_path / "nowhere", 10, 1.0)
