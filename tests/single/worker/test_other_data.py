"""A worker that has loaded other data than the driver ends before its first step, and says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallax_runner.config.frozen import FIT, from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.identity import Contents, identity_of
from parallax_runner.data.table.source import load as load_table
from parallax_runner.errors import DataError
from parallax_runner.worker.rank import check_data


def config(target: str = "models.linear", **data: Any) -> RunConfig:
    return from_plain({"model": {"_target_": target}, "data": {"_target_": "mine.load", **data}})


def split(seed: int | None) -> Dataset:
    """The split of a data function that does, or does not, seed its generator."""
    rows = np.random.default_rng(seed).permutation(1000)
    return ArrayDataset(train={"x": rows[100:]}, validation={"x": rows[:100]}, words_per_example=None, seed=1)


def of_driver(seed: int | None, **data: Any) -> Contents:
    return identity_of(config(**data), split(seed))


def test_a_split_without_a_seed_is_refused() -> None:
    told = (
        "rank 1 has loaded other training data (the content of the examples differs) than the driver. Every process "
        "runs data._target_=mine.load and must get the same data: seed each random generator, as in "
        "np.random.default_rng(1), and sort what has no fixed order, such as the files in a folder. If the data must "
        "differ, set ++data.resume=approximate, so that it is not compared"
    )
    with pytest.raises(DataError, match=f"^{re.escape(told)}$"):
        check_data(config(), split(None), of_driver(None), 1)
    with pytest.raises(DataError, match=r'runs the script and .*overrides=\["data\.resume=approximate"\]'):
        check_data(config(FIT), split(None), of_driver(None), 1)


def test_the_same_data_and_data_that_may_differ_are_not() -> None:
    check_data(config(), split(3), of_driver(3), 1)
    approximate = {"resume": "approximate"}
    check_data(config(**approximate), split(None), of_driver(None, **approximate), 1)


def test_files_of_a_table_that_changed_are_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    def loaded(rows: int) -> Dataset:
        path.write_text("x,y\n" + "1,0\n" * rows)
        return load_table(train=str(path), columns={"x": "number", "y": "label"}, seed=1, cache_dir=str(tmp_path))

    driver = identity_of(config(), loaded(3))
    with pytest.raises(DataError, match=r"than the driver: the files of the table have changed since the driver read"):
        check_data(config(), loaded(4), driver, 1)
