"""From the settings of a table to its dataset."""

from pathlib import Path

import pytest

from parallax_runner.data.table.source import load
from parallax_runner.errors import DataError

ROWS = "day,x,y\n2024-01-01,1,0\n2024-01-02,2,1\n2024-01-03,oops,1\n"


def loaded(folder: Path, **settings):
    path = folder / "rows.csv"
    path.write_text(ROWS, encoding="utf-8")
    given = {"columns": {"x": "number", "y": "label"}, "seed": 1, "cache_dir": str(folder / "cache")}
    return load(train=str(path), on_bad_row="skip", **given, **settings)


def test_rows_from_a_day_on_are_for_validation(tmp_path):
    dataset = loaded(tmp_path, partition={"column": "day", "bounds": {"validation": "2024-01-02"}})
    assert (dataset.train_size, dataset.validation_size) == (1, 1)


@pytest.mark.parametrize(
    ("partition", "told"),
    [
        ({"column": "day", "bounds": {"validation": "2030-01-01"}}, "bounds.validation=2030-01-01: no row is in this"),
        ({"column": "day", "bounds": {"test": "2024-01-03"}}, "bounds.test=2024-01-03: no row is in this part"),
        ({"fractions": {"validation": 1e-9}}, "fractions.validation=1e-09: no row is in this part"),
    ],
)
def test_a_part_without_rows_is_refused(tmp_path, partition, told):
    with pytest.raises(DataError, match=f"data.partition.{told}"):
        loaded(tmp_path, partition=partition)
