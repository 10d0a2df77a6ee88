"""Which reader a format has, and which files it refuses before it reads rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.data.table.arrow_reader import ArrowReader, ParquetReader
from parallax_runner.data.table.csv_reader import CsvReader
from parallax_runner.data.table.json_reader import JsonReader
from parallax_runner.data.table.read_columns import ReadColumn
from parallax_runner.data.table.readers import check_names, reader_of
from parallax_runner.data.table.sources import FORMATS, SourceFile, Sources
from parallax_runner.errors import ConfigError, DataError
from tests.single.data.table.rows_of import columns_of

READ = [ReadColumn.of(column) for column in columns_of(a="integer", é="string")]


def files(folder: Path, texts: Sequence[str]) -> list[SourceFile]:
    found = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.txt"
        path.write_text(text, encoding="utf-8")
        found.append(SourceFile(path.name, path, path.stat().st_size, 0))
    return found


def test_each_format_has_a_reader() -> None:
    names = [type(reader_of(Sources({}), name)).__name__ for name in FORMATS]
    assert names == ["CsvReader", "CsvReader", "JsonReader", "ParquetReader", "ArrowReader", "TfRecordReader"]


@pytest.mark.parametrize("delimiter", ["", ",,", "é", '"', "\n", "\r", 1])
def test_a_delimiter_is_one_ascii_character(delimiter: Any) -> None:
    """Also an empty one is refused, and does not stand for the default. YAML makes 1 an integer."""
    with pytest.raises(ConfigError, match=r"(?s)data\.delimiter=.*: expected one ASCII character"):
        reader_of(Sources({}, delimiter=delimiter), "csv")


@pytest.mark.parametrize("format_name", ["jsonl", "parquet", "arrow", "tfrecord"])
def test_only_text_tables_have_delimiters_and_headers(format_name: str) -> None:
    for sources in (Sources({}, delimiter=";"), Sources({}, header=("a",))):
        with pytest.raises(ConfigError, match=rf"data\.format={format_name}: expected a delimiter or a header only"):
            reader_of(sources, format_name)


def test_the_delimiter_and_the_header_of_the_settings(tmp_path: Path) -> None:
    (one,) = files(tmp_path, ["é;a\n1;2\n"])
    assert reader_of(Sources({}, delimiter=";"), "tsv").names(one) == ["é", "a"]
    assert reader_of(Sources({}), "csv").names(one) == ["é;a"]
    assert reader_of(Sources({}, header=("x", "y")), "csv").names(one) == ("x", "y")


WRONG = {
    "a column is missing": (["a,e\n1,2\n"], r"0\.txt: there is no column é; the nearest name is e.*data\.header"),
    "in the second file": (["a,é\n", "é,b\n"], r"1\.txt: there is no column a; the nearest name is é"),
    "a column is there twice": (["a,é,a\n"], r"0\.txt: 2 columns have the name a\. Rename all but one"),
    "more columns": (["a,é\n", "a,é,x\n"], r"1\.txt: expected the columns of .*0\.txt, but this file has 3 columns"),
    "another order": (["a,é\n", "é,a\n"], r"1\.txt: .*but column 1 is é, not a\. Give all files the same columns"),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_with_other_columns_are_refused(case: str, tmp_path: Path) -> None:
    texts, message = WRONG[case]
    with pytest.raises(DataError, match=message):
        check_names(CsvReader(",", None), files(tmp_path, texts), READ)


def test_files_with_the_same_columns_are_accepted(tmp_path: Path) -> None:
    check_names(CsvReader(",", None), files(tmp_path, ["é,more,a\n1,2,3\n", "é,more,a\n"]), READ)
    check_names(CsvReader(",", None), [], READ)
    check_names(JsonReader(), [], READ)


def test_a_column_of_objects_is_in_some_file(tmp_path: Path) -> None:
    some = files(tmp_path, ['{"a": 1}\n', '{"é": 1}\n', "{}\n"])
    check_names(JsonReader(), some, READ)
    with pytest.raises(DataError, match=r"0\.txt: there is no column é; the nearest name is a\. Correct the name\.$"):
        check_names(JsonReader(), some[:1], READ)
    with pytest.raises(DataError, match="there is no column a, because this file has no columns"):
        check_names(JsonReader(), some[2:], READ)


@pytest.mark.parametrize("reader", [ParquetReader(), ArrowReader()])
def test_another_format_is_refused(reader: ParquetReader | ArrowReader, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0\.txt: cannot be read: .*Expected a file in the format (Parquet|Arrow)"):
        check_names(reader, files(tmp_path, ["a,é\n1,2\n"]), READ)
