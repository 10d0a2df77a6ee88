"""Ratings of MovieLens 100K with `model=tabular`, in the five folds of Surprise's benchmark.

The wheel of RecBole contains the ratings. MovieLens may not be redistributed, so the files stay where the caller asks
for them.
"""

from __future__ import annotations

import csv
import io
import math
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.results.experiment import Experiment

FOLDER = "recbole/dataset_example/ml-100k"
FOLDS = 5
COLUMNS = (
    "{user_id: category, item_id: category, age: {number: {standardize: true}}, gender: category, "
    'occupation: category, class: {categories: {separator: " "}}, rating: label}'
)
USED = ("user_id", "item_id", "age", "gender", "occupation", "class", "rating")

Row = dict[str, str]


def write_files(wheel: Path, folder: Path, *, fold: int) -> dict[str, float]:
    """Writes `train.csv` and `test.csv`, and returns facts about them: the numbers of rows, and the error of the
    training ratings' mean as a prediction for all test rows. `fold` counts from 0."""
    rows = joined(wheel)
    test_rows = rows_of_fold(len(rows), fold)
    is_test = np.zeros(len(rows), dtype=bool)
    is_test[test_rows] = True
    parts = {"train": np.flatnonzero(~is_test), "test": np.flatnonzero(is_test)}
    for name, places in parts.items():
        _write(folder / f"{name}.csv", [rows[place] for place in places])
    ratings = np.array([float(row["rating"]) for row in rows])
    mean = ratings[parts["train"]].mean()
    baseline = float(np.sqrt(np.mean((ratings[parts["test"]] - mean) ** 2)))
    return {"train_rows": len(parts["train"]), "test_rows": len(parts["test"]), "rmse_of_the_mean": baseline}


def rows_of_fold(row_count: int, fold: int) -> np.ndarray:
    """Returns the places of the test rows, in the folds that Surprise's `KFold(random_state=0)` makes of rows in the
    same order: a shuffle with NumPy's old generator, divided into contiguous parts."""
    places = np.arange(row_count)
    np.random.RandomState(0).shuffle(places)
    return np.array_split(places, FOLDS)[fold]


def joined(wheel: Path) -> list[Row]:
    """Returns the ratings in the order of their file, each with the columns of its user and of its item."""
    with zipfile.ZipFile(wheel) as archive:
        users, items = (
            {row[key]: row for row in _read(archive, part)} for part, key in (("user", "user_id"), ("item", "item_id"))
        )
        return [{**users[row["user_id"]], **items[row["item_id"]], **row} for row in _read(archive, "inter")]


def rmse(_run_dir: Path, _files: Path, recorded: Mapping[int, float]) -> dict[int, float]:
    """Returns the roots of mean squared errors."""
    return {step: math.sqrt(value) for step, value in recorded.items()}


def _read(archive: zipfile.ZipFile, part: str) -> list[Row]:
    """Reads a file of RecBole, which has the type behind the name of each column."""
    with archive.open(f"{FOLDER}/ml-100k.{part}") as file:
        head, *lines = csv.reader(io.TextIOWrapper(file, encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE)
    names = [name.partition(":")[0] for name in head]
    return [dict(zip(names, line, strict=True)) for line in lines]


def _write(path: Path, rows: list[Row]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, USED, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _experiment(fold: int) -> Experiment:
    return Experiment(
        name=f"ratings_{fold + 1}",
        data="the wheel of RecBole",
        settings=(
            *("model=tabular", "model.task=regression", "model.embedding_size=16", "model.learning_rate=0.05"),
            *("data.train={files}/train.csv", "data.validation={files}/test.csv", f"data.columns={COLUMNS}"),
            "data.cache_dir={files}/cache",
        ),
        global_batch=512,
        steps=800,
        measure_steps=50,
        recorded="validation/loss",
        metric="RMSE",
        prepare=partial(write_files, fold=fold),
        values=rmse,
    )


EXPERIMENTS = tuple(_experiment(fold) for fold in range(FOLDS))
