"""MovieLens 100K, from the wheel of RecBole that contains it, as CSV files for `data=table`.

MovieLens may not be redistributed, so the files stay where the caller asks for them.
"""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import numpy as np

FOLDER = "recbole/dataset_example/ml-100k"
VALIDATION_SHARE = 0.1
SEED = 1
COLUMNS = (
    "{user_id: category, item_id: category, age: {number: {standardize: true}}, gender: category, "
    'occupation: category, class: {categories: {separator: " "}}, rating: label}'
)
USED = ("user_id", "item_id", "age", "gender", "occupation", "class", "rating")

Row = dict[str, str]


def write_files(wheel: Path, folder: Path) -> dict[str, float]:
    """Writes `train.csv` and `validation.csv`, and returns facts about them: the numbers of rows, and the error of a
    constant prediction. A tenth of the ratings, drawn with a seed, is for validation."""
    rows = joined(wheel)
    order = np.random.default_rng(SEED).permutation(len(rows))
    first = round(len(rows) * VALIDATION_SHARE)
    parts = {"validation": np.sort(order[:first]), "train": np.sort(order[first:])}
    ratings = np.array([float(row["rating"]) for row in rows])
    for name, places in parts.items():
        _write(folder / f"{name}.csv", [rows[place] for place in places])
    mean = ratings[parts["train"]].mean()
    constant = np.sqrt(np.mean((ratings[parts["validation"]] - mean) ** 2))
    sizes = {f"{name}_rows": float(len(places)) for name, places in parts.items()}
    return {**sizes, "rmse_of_the_mean": float(constant)}


def joined(wheel: Path) -> list[Row]:
    """Returns the ratings, each with the columns of its user and of its item."""
    with zipfile.ZipFile(wheel) as archive:
        users, items = (
            {row[key]: row for row in _read(archive, part)} for part, key in (("user", "user_id"), ("item", "item_id"))
        )
        return [{**users[row["user_id"]], **items[row["item_id"]], **row} for row in _read(archive, "inter")]


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
