"""Generators of a script: workers build with the states of its first process, and go on with their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.graph import generators
from parallax_runner.graph.generators import Begin, Borrowed, restore, states


@pytest.fixture(autouse=True)
def first_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that it has left; afterwards this process has its own states again."""
    before = states()
    random.seed(7)
    np.random.seed(8)
    begin = Begin()
    begin.note()
    begin.save(tmp_path / generators.FILE_NAME)
    restore(before)
    monkeypatch.setattr(generators, "begin", Begin())
    yield tmp_path / generators.FILE_NAME
    restore(before)


def drawn() -> tuple[float, float]:
    return random.random(), np.random.random()


def of_seeds(python: int, numpy: int) -> tuple[float, float]:
    return random.Random(python).random(), float(np.random.RandomState(numpy).random())


def test_a_worker_draws_what_the_first_process_has_drawn_and_then_goes_on_with_its_own(first_process: Path) -> None:
    own = states()
    borrowed = Borrowed(first_process)
    generators.begin.note()
    assert drawn() == of_seeds(7, 8)
    borrowed.give_back()
    assert states() == own


def test_it_does_so_where_tensorflow_is_there_already(first_process: Path) -> None:
    generators.begin.note()
    borrowed = Borrowed(first_process)
    assert drawn() == of_seeds(7, 8)
    borrowed.give_back()


def test_what_the_script_seeds_stays(first_process: Path) -> None:
    own, setters = states(), (random.seed, np.random.seed)
    borrowed = Borrowed(first_process)
    np.random.seed(3)
    generators.begin.note()  # TensorFlow comes after; the first process has noted the seeded state
    np.random.seed(3)
    borrowed.give_back()
    assert (random.seed, np.random.seed) == setters
    assert states()["random"] == own["random"]
    assert np.random.random() == of_seeds(0, 3)[1]


def test_to_begin_changes_nothing_in_the_first_process() -> None:
    before = states()
    begin = Begin()
    begin.note()
    assert states() == before
    assert begin.is_untouched()
    random.random()
    assert not begin.is_untouched()
