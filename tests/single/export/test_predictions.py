"""Files of predictions: which rows they have, and how outputs become columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.identified import identities
from parallax_runner.errors import ConfigError, ExportError
from parallax_runner.export.predictions import About, File, files_of, outputs_as_columns, own_files, write


@pytest.mark.parametrize(("rows", "batch"), [(1, 4), (1024, 4), (1025, 4), (3000, 7), (1_000_000, 100), (10, 5000)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_ranks_write_each_row_once(rows: int, batch: int, ranks: int, tmp_path: Path) -> None:
    files = files_of(tmp_path, rows, "parquet", batch)
    assert [file.start for file in files] == [0, *(file.stop for file in files[:-1])]
    assert files[-1].stop == rows
    assert all((file.stop - file.start) % batch == 0 for file in files[:-1])
    assert [one for rank in range(ranks) for one in own_files(files, rank, ranks)] == files
    files[0].path.touch()
    assert [one for rank in range(ranks) for one in own_files(files, rank, ranks)] == files[1:]


def test_outputs_become_columns_of_all_rows() -> None:
    outputs = {"p": np.ones([4, 1]), "vector": np.zeros([4, 2]), "label": np.arange(4)}
    found = outputs_as_columns(outputs, 3)
    assert {name: values.shape for name, values in found.items()} == {"p": (3,), "vector": (3, 2), "label": (3,)}
    for values in (np.float32(1.0), np.ones(2)):
        with pytest.raises(ExportError, match=r"the output «mean» has the shape .* has no row for each of the 3"):
            outputs_as_columns({"mean": values}, 3)


def test_vectors_are_lists_in_parquet_and_columns_in_csv(tmp_path: Path) -> None:
    columns = {"id": np.arange(2), "m": np.arange(8.0).reshape(2, 2, 2)}
    as_lists, as_columns = File(tmp_path / "a.parquet", 0, 2), File(tmp_path / "a.csv", 0, 2)
    write(as_lists, columns)
    write(as_columns, columns)
    assert pyarrow.parquet.read_table(as_lists.path)["m"].to_pylist() == columns["m"].tolist()
    found = pyarrow.csv.read_csv(as_columns.path)
    assert found.column_names == ["id", "m_0_0", "m_0_1", "m_1_0", "m_1_1"]
    np.testing.assert_array_equal(found["m_1_0"], [2.0, 6.0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.parquet"]


def test_a_folder_has_predictions_of_one_kind(tmp_path: Path) -> None:
    about = About("model.ckpt-6", "test", 10, "csv")
    about.claim(tmp_path / "predictions")
    about.claim(tmp_path / "predictions")
    with pytest.raises(ConfigError, match=r"this folder has other predictions: prefix model\.ckpt-6; choose another"):
        About("model.ckpt-7", "test", 10, "csv").claim(tmp_path / "predictions")


def test_rows_without_identifiers_have_numbers() -> None:
    class Named(ArrayDataset):
        def ids(self, part: str, start: int, size: int) -> dict[str, np.ndarray]:
            return {"user": np.array([f"{part} {number}" for number in range(start, start + size)])}

    parts = {"train": {"x": np.arange(7)}, "validation": {"x": np.arange(5)}}
    plain = ArrayDataset(**parts, words_per_example=None, seed=1)
    assert identities(plain, "test", 3, 2)["row"].tolist() == [3, 4]
    named = Named(**parts, words_per_example=None, seed=1)
    assert identities(named, "test", 3, 2)["user"].tolist() == ["test 3", "test 4"]
