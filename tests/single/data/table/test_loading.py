"""Settings of a table that do not fit are named before a file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from parallax_runner.data.table.bad_rows import BadRows
from parallax_runner.data.table.loading import table_dataset
from parallax_runner.data.table.source import load as load_table
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.errors import ConfigError, DataError

MISSING = "no/such/file.csv"


def load(folder: Path, **given: Any) -> TableDataset:
    settings: dict[str, Any] = {
        **{"train": MISSING, "validation": None, "test": None, "columns": {"a": "number"}, "features": None},
        **{"partition": None, "shuffle": "off", "bad_rows": BadRows(), "seed": 1},
        **given,
    }
    return table_dataset(**settings, cache_dir=str(folder / "cache"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"train": []}, r"data\.train=\[\]: expected a string or a list of strings"),
    ({"train": 3}, r"data\.train=3: expected a string or a list of strings"),
    ({"train": [MISSING, None]}, r"data\.train=.*: expected a string or a list of strings"),
    ({"train": ""}, r"data\.train=: expected the path of a file or a folder"),
    ({"train": [""]}, r"data\.train=: expected the path of a file or a folder"),
    ({"validation": {}}, r"data\.validation=\{\}: expected a string or a list of strings"),
    ({"test": b"a.csv"}, r"data\.test=.*: expected a string or a list of strings"),
    ({"header": []}, r"data\.header=\[\]: expected a string or a list of strings"),
    ({"shuffle": "half"}, r"data\.shuffle=half: expected full, blocks or off"),
    ({"shuffle": ["full"]}, r"data\.shuffle=.*: expected full, blocks or off"),
    ({"partition": 0.1}, r"data\.partition=0\.1: expected settings such as \{fractions: "),
    ({"partition": {"fraction": {}}}, r"data\.partition\.fraction=.*Did you mean data\.partition\.fractions\?"),
    ({"partition": {1: 2}}, r"data\.partition\.1=2: expected one of fractions, column, bounds, seed"),
    ({"partition": {"fractions": [0.1]}}, r"data\.partition\.fractions=\[0\.1\]: expected a part and a number"),
    ({"columns": {}}, r"data\.columns=\{\}: expected the columns by name"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_wrong_setting_is_named_first(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **given)
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_missing_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train=no/such/file\.csv: there is no such file or folder"):
        load(tmp_path)


def test_an_empty_path_does_not_stand_for_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.validation=: expected the path"):
        load(tmp_path, train="rows.csv", validation="")
    assert load(tmp_path, train="rows.csv").train_size == 1


def test_settings_of_hydra_are_those_of_python(tmp_path: Path) -> None:
    for name, rows in {"a": 30, "b": 10, "v": 5}.items():
        (tmp_path / f"{name}.csv").write_text("".join(f"{row},{name}\n" for row in range(rows)))
    given = {
        "train": [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")],
        "validation": str(tmp_path / "v.csv"),
        "header": ["n", "c"],
        "columns": {"n": "number", "c": "category"},
        "partition": {"column": "n", "bounds": {"test": 20}},
    }
    plain = load(tmp_path, **given)
    hydra = load(tmp_path, **OmegaConf.create(given))
    assert (plain.train_size, plain.validation_size, plain.test_size) == (30, 5, 10)
    assert (hydra.train_size, hydra.validation_size, hydra.test_size) == (30, 5, 10)
    assert hydra.contents() == plain.contents()
    assert plain.test_batch(0, 10)["n"].tolist() == list(range(20, 30))


ROWS = "day,x,y\n2024-01-01,1,0\n2024-01-02,2,1\n2024-01-03,oops,1\n"


def loaded(folder: Path, **settings: Any) -> TableDataset:
    path = folder / "rows.csv"
    path.write_text(ROWS, encoding="utf-8")
    given = {"columns": {"x": "number", "y": "label"}, "seed": 1, "cache_dir": str(folder / "cache")}
    return load_table(train=str(path), on_bad_row="skip", **given, **settings)


def test_rows_from_a_day_on_are_for_validation(tmp_path: Path) -> None:
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
def test_a_part_without_rows_is_refused(tmp_path: Path, partition: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=f"data.partition.{told}"):
        loaded(tmp_path, partition=partition)
