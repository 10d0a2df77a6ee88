"""Files that are not for training may lack labels, weights and groups, in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallax_runner.data.table.bad_rows import BadRows
from parallax_runner.data.table.criteo import load as load_criteo
from parallax_runner.data.table.csv_reader import CsvReader
from parallax_runner.data.table.lenient_reader import LenientReader
from parallax_runner.data.table.loading import table_dataset
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.errors import DataError
from tests.single.data.table.rows_of import columns_of
from tests.single.data.table.written import written

KINDS = {"x": "number", "liked": "label", "weight": "weight", "query": "group"}
ROWS = [(float(number), number % 2, 1.0, f"q{number % 3}") for number in range(20)]
ALL = columns_of(x="number", liked="integer", weight="number", query="string")
SUFFIXES = ("csv", "tsv.gz", "jsonl", "parquet", "arrow", "tfrecord")


def load(tmp_path: Path, train: Path, **given: Any) -> TableDataset:
    settings: dict[str, Any] = {
        **{"validation": None, "test": None, "columns": KINDS, "features": None, "partition": None, "shuffle": "off"},
        **{"bad_rows": BadRows(), "seed": 1, **given},
    }
    parts = {name: str(settings.pop(name)) for name in ("validation", "test") if settings[name] is not None}
    return table_dataset(**{**settings, **parts}, train=str(train), cache_dir=str(tmp_path / "cache"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_without_labels_are_predicted_and_not_evaluated(suffix: str, tmp_path: Path) -> None:
    train = written(tmp_path / f"train.{suffix}", ALL, ROWS)
    new = written(tmp_path / f"new.{suffix}", ALL[:1], [row[:1] for row in ROWS])
    for part in ("validation", "test"):
        dataset = load(tmp_path, train, **{part: new}, evaluated_part=None)
        rows = dataset.validation_batch(0, 20) if part == "validation" else dataset.test_batch(0, 20)
        assert rows["x"].tolist() == [row[0] for row in ROWS]
        assert rows["liked"].shape == rows["weight"].shape == rows["query"].shape == (20,)
        with pytest.raises(DataError, match=rf"columns\.liked=label: the files of data\.{part} lack this column"):
            load(tmp_path, train, **{part: new}, evaluated_part=part)


def test_a_training_ignores_that_test_rows_have_no_labels(tmp_path: Path) -> None:
    train = written(tmp_path / "train.csv", ALL, ROWS)
    new = written(tmp_path / "new.csv", ALL[:1], [row[:1] for row in ROWS])
    assert load(tmp_path, train, test=new).test_size == 20


def test_a_column_that_is_an_input_is_not_optional(tmp_path: Path) -> None:
    train = written(tmp_path / "train.csv", ALL, ROWS)
    new = written(tmp_path / "new.csv", ALL[1:], [row[1:] for row in ROWS])
    with pytest.raises(DataError, match=r"new\.csv: there is no column x"):
        load(tmp_path, train, test=new, evaluated_part=None)


@pytest.mark.parametrize("column", ["liked", "weight", "query"])
def test_rows_for_training_need_all_columns(column: str, tmp_path: Path) -> None:
    kept = [number for number, one in enumerate(ALL) if one.name != column]
    train = written(tmp_path / "train.csv", [ALL[number] for number in kept], [[row[i] for i in kept] for row in ROWS])
    with pytest.raises(DataError, match=rf"train\.csv: there is no column {column}.*set data\.header"):
        load(tmp_path, train, evaluated_part=None)


@pytest.mark.parametrize("on_bad_row", ["fail", "skip"])
def test_a_blank_label_is_bad_only_where_it_is_evaluated(on_bad_row: str, tmp_path: Path) -> None:
    train = written(tmp_path / "train.csv", ALL, ROWS)
    (tmp_path / "new.csv").write_text("x,liked,weight,query\n1,,,\n2,1,1,a\n3,1,-1,b\n")
    given: dict[str, Any] = {"test": tmp_path / "new.csv", "bad_rows": BadRows(on_bad_row)}
    predicted = load(tmp_path, train, **given, evaluated_part=None)
    assert predicted.test_batch(0, 3)["x"].tolist() == [1, 2, 3]
    assert predicted.notes == ()
    if on_bad_row == "fail":
        with pytest.raises(DataError, match=r"columns\.liked\.label.*new\.csv: line 2 has no number"):
            load(tmp_path, train, **given, evaluated_part="test")
        return
    evaluated = load(tmp_path, train, **given, evaluated_part="test")
    assert evaluated.test_batch(0, evaluated.test_size)["x"].tolist() == [2]


def test_a_prediction_does_not_learn_again_what_the_training_has_learned(tmp_path: Path) -> None:
    train = written(tmp_path / "train.csv", ALL, ROWS)
    load(tmp_path, train, validation=train)
    learned = list((tmp_path / "cache").rglob("fitted-*"))
    load(tmp_path, train, validation=train, evaluated_part=None)
    assert list((tmp_path / "cache").rglob("fitted-*")) == learned
    assert len(learned) == 1


def test_files_in_criteos_layout_need_no_label(tmp_path: Path) -> None:
    rows = [[number % 2, number, number + 1, f"c{number % 3}"] for number in range(12)]
    for name, start in {"train": 0, "test": 1}.items():
        text = "".join("\t".join(map(str, row[start:])) + "\n" for row in rows)
        (tmp_path / f"{name}.tsv").write_text(text)
    dataset = load_criteo(
        train=str(tmp_path / "train.tsv"),
        test=str(tmp_path / "test.tsv"),
        dense_features=2,
        cardinalities=[50],
        seed=1,
        shuffle="off",
        cache_dir=str(tmp_path),
        evaluated_part=None,
    )
    assert isinstance(dataset, TableDataset)
    trained, tested = dataset.training_rows(0, 12), dataset.test_batch(0, 12)
    for name in ("dense", "categorical"):
        np.testing.assert_array_equal(trained[name], tested[name])
    with pytest.raises(DataError, match=r"test\.tsv: line 1: expected 4 columns, got 3"):
        load_criteo(
            train=str(tmp_path / "test.tsv"), dense_features=2, cardinalities=[50], seed=1, cache_dir=str(tmp_path)
        )


def test_only_the_files_that_may_lack_columns_are_read_with_a_shorter_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1\n")
    file = SourceFile("a.csv", path, 2, 0)
    reader = CsvReader(",", ("x", "y"))
    assert list(LenientReader(reader, [file], ["y"]).names(file)) == ["x"]
    assert list(LenientReader(reader, [], ["y"]).names(file)) == ["x", "y"]
