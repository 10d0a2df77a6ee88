"""A file that a numbered set lacks is missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.data.table.shards import missing_shards
from parallax_runner.data.table.sources import Sources, files_of
from parallax_runner.errors import DataError


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["a-00000-of-00002.csv", "a-00001-of-00002.csv"], []),
        (["a-00001-of-00002.csv", "a-00002-of-00002.csv"], []),
        (["a-00000-of-00003.csv", "a-00002-of-00003.csv"], ["a-00001-of-00003.csv"]),
        (["a-3-of-3", "a-1-of-3"], ["a-2-of-3"]),
        (["x/a-0-of-2.gz", "y/a-1-of-2.gz"], ["x/a-1-of-2.gz", "y/a-0-of-2.gz"]),
        (["part-00000.csv", "part-00002.csv", "1-of-a", "b"], []),
        (["a.tfrecord-00000-of-00001"], []),
    ],
)
def test_names_say_how_many_files_there_are(names: list[str], missing: list[str]) -> None:
    assert missing_shards(names) == missing


def write(folder: Path, numbers: list[int]) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        (folder / f"t-{number:05}-of-00012.csv").write_text("a\n1\n")


def test_a_missing_file_of_a_folder_or_a_glob_is_named(tmp_path: Path) -> None:
    write(tmp_path / "data", [*range(5), *range(7, 12)])
    for path in ("data", "data/*.csv", "d*/t-*"):
        with pytest.raises(DataError, match=r"t-00005-of-00012\.csv is missing, and 1 more of these files"):
            files_of(Sources({"train": (str(tmp_path / path),)}))


def test_some_files_of_a_set_can_be_chosen(tmp_path: Path) -> None:
    write(tmp_path / "data", [*range(5), *range(7, 12)])
    for path, count in {"t-0000[0-4]*": 5, "t-0001*": 2, "t-00000-of-00012.csv": 1}.items():
        assert len(files_of(Sources({"train": (str(tmp_path / "data" / path),)}))["train"]) == count
