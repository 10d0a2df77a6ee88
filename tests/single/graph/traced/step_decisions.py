"""Decides about the marks of steps that a script writes, for the tests of the trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parallax_runner.graph.single_device_graph import DivisorKind
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.graph.traced.loss_divisors import with_sums
from parallax_runner.graph.traced.loss_notes import notes_on_losses

BATCH, LENGTH, ROWS, GLOBAL = 8, 5, 50, 16.0
SHAPES: dict[str, Any] = {
    "ids": ((BATCH, LENGTH), "int32"),
    "x": ((BATCH, 3), "float32"),
    "y": ((BATCH,), "float32"),
}
DRAW = np.random.default_rng(3)
DATA = {
    "ids": DRAW.integers(1, ROWS, (64, LENGTH)).astype("int32"),
    "x": DRAW.normal(size=(64, 3)).astype("float32"),
    "y": DRAW.normal(size=64).astype("float32"),
}
# Marks by their kinds; negative numbers are targets of tapes.
ONE, COUNT = DivisorKind.ONE, DivisorKind.COUNT
TARGET, OTHER_TARGET, FIRST = (ONE, -1), (ONE, -2), (ONE, 0)
IS_SUM, IS_NEITHER, IS_SUMMED = "is a sum over examples", "is neither", "A step uses the sum of the gradients"
Marks = list[tuple[DivisorKind, int]]


def decided(make: Callable[[], Any], *, is_uneven: bool = False, **options: Any) -> tuple[Marks, list[str]]:
    """Returns the marks that count, and the notes."""
    single = capture_step(make, SHAPES, seed=7, options=options)
    found = notes_on_losses(
        single.loss_trial,
        lambda size: {name: DATA[name][:size] for name in SHAPES},
        replicas=2,
        step_examples=2 * BATCH,
        exact=single.divisors,
        is_uneven=is_uneven,
    )
    return [(one.kind, one.term) for one in with_sums(single.divisors, found.sums)], list(found.notes)


def check(found: tuple[Marks, list[str]], marks: Marks, notes: list[str]) -> None:
    """Checks the marks, and that each note has these words."""
    assert found[0] == marks
    assert len(found[1]) == len(notes)
    for note, words in zip(found[1], notes, strict=True):
        assert words in note
        assert (IS_SUMMED in note) == (words == IS_SUMMED)
