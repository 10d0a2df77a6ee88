"""The files of the ratings: the columns that are joined, the folds of Surprise, and the baseline."""

from __future__ import annotations

import csv
import itertools
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.results import ratings
from tests.ratings_wheel import RATINGS, write_wheel


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with a few ratings."""
    return write_wheel(tmp_path / "recbole.whl")


def test_a_rating_has_the_columns_of_its_user_and_of_its_item(wheel: Path) -> None:
    first = ratings.joined(wheel)[0]
    assert {name: first[name] for name in ratings.USED} == {
        "user_id": "1",
        "item_id": "1",
        "age": "21",
        "gender": "F",
        "occupation": "writer",
        "class": "Drama War",
        "rating": "2",
    }


def test_each_row_is_in_the_test_part_of_one_fold() -> None:
    parts = [ratings.rows_of_fold(23, fold) for fold in range(ratings.FOLDS)]
    assert sorted(itertools.chain(*parts)) == list(range(23))
    assert [len(part) for part in parts] == [5, 5, 5, 4, 4]


def test_folds_are_those_of_surprise() -> None:
    # What `KFold(random_state=0).split` of scikit-surprise 1.1.4 does, written out.
    places = np.arange(23)
    np.random.RandomState(0).shuffle(places)
    start = stop = 0
    for fold in range(ratings.FOLDS):
        start = stop
        stop += 23 // ratings.FOLDS
        if fold < 23 % ratings.FOLDS:
            stop += 1
        assert list(ratings.rows_of_fold(23, fold)) == list(places[start:stop])


def test_the_baseline_knows_only_the_training_rows(wheel: Path, tmp_path: Path) -> None:
    facts = ratings.write_files(wheel, tmp_path, fold=0)
    parts = {}
    for name in ("train", "test"):
        with open(tmp_path / f"{name}.csv", encoding="utf-8", newline="") as file:
            parts[name] = np.array([float(row["rating"]) for row in csv.DictReader(file)])
    assert (facts["train_rows"], facts["test_rows"]) == (len(parts["train"]), len(parts["test"])) == (48, 12)
    expected = np.sqrt(np.mean((parts["test"] - parts["train"].mean()) ** 2))
    assert facts["rmse_of_the_mean"] == pytest.approx(expected)


def test_the_wheel_of_this_test_has_the_layout_of_recbole(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist()}
    assert names == {"ml-100k.inter", "ml-100k.item", "ml-100k.user"}
    assert len(ratings.joined(wheel)) == RATINGS
