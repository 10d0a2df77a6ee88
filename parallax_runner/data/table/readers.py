"""Chooses the reader of a format, and checks that the files have the columns."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from parallax_runner.data.table.arrow_reader import ArrowReader, ParquetReader
from parallax_runner.data.table.csv_reader import CsvReader
from parallax_runner.data.table.json_reader import JsonReader
from parallax_runner.data.table.raw_block import Reader
from parallax_runner.data.table.read_columns import ReadColumn
from parallax_runner.data.table.sources import ARROW, CSV, JSON_LINES, PARQUET, TFRECORD, TSV, SourceFile, Sources
from parallax_runner.errors import ConfigError, DataError, Setting

_DELIMITERS = {CSV: ",", TSV: "\t"}


def reader_of(sources: Sources, format_name: str) -> Reader:
    """Returns the reader of the files. Raises ConfigError if a setting does not suit the format."""
    if format_name in _DELIMITERS:
        delimiter = _DELIMITERS[format_name] if sources.delimiter is None else sources.delimiter
        if not _can_delimit(delimiter):
            raise ConfigError("expected one ASCII character.").about(Setting.of("data.delimiter", delimiter))
        return CsvReader(delimiter, sources.header)
    if sources.delimiter is not None or sources.header is not None:
        raise ConfigError("expected a delimiter or a header only with csv and tsv.").about(
            Setting.of("data.format", format_name)
        )
    if format_name == TFRECORD:
        # This module imports TensorFlow.
        from parallax_runner.data.table.tfrecord_reader import TfRecordReader

        return TfRecordReader()
    readers: dict[str, type[JsonReader | ParquetReader | ArrowReader]] = {
        JSON_LINES: JsonReader,
        PARQUET: ParquetReader,
        ARROW: ArrowReader,
    }
    return readers[format_name]()


def _can_delimit(given: object) -> bool:
    if not isinstance(given, str) or len(given) != 1:
        return False
    return given.isascii() and given not in '"\r\n'


def check_names(
    reader: Reader, files: Sequence[SourceFile], read: Sequence[ReadColumn], *, may_lack: Collection[str] = ()
) -> None:
    """Raises DataError if a file lacks a column or has it twice, or if the columns of two files differ. The files may
    lack the columns `may_lack`."""
    if not reader.has_schema:
        _check_in_some(reader, files, [column for column in read if column.name not in may_lack])
        return
    first: tuple[str, ...] | None = None
    for file in files:
        names = tuple(reader.names(file))
        for column in read:
            if column.name in names or column.name not in may_lack:
                _check_name(column.name, names, file, reader)
        if first is None:
            first = names
        elif names != first:
            raise DataError(
                f"{file.path}: expected the columns of {files[0].path}, but {_difference(first, names)}. "
                "Give all files the same columns."
            )


def _check_in_some(reader: Reader, files: Sequence[SourceFile], read: Sequence[ReadColumn]) -> None:
    """Raises DataError if the first rows of no file have a column."""
    names = list(dict.fromkeys(name for file in files for name in reader.names(file)))
    for column in read if files else ():
        _check_name(column.name, names, files[0], reader)


def _check_name(name: str, names: Sequence[str], file: SourceFile, reader: Reader) -> None:
    count = names.count(name)
    if count == 1:
        return
    if count > 1:
        raise DataError(f"{file.path}: {count} columns have the name {name}. Rename all but one.")
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    if not nearest:
        raise DataError(f"{file.path}: there is no column {name}, because this file has no columns.")
    raise DataError(
        f"{file.path}: there is no column {name}; the nearest name is {nearest[0]}. Correct the name"
        f"{_or_set_header(reader)}."
    )


def _or_set_header(reader: Reader) -> str:
    if not reader.takes_header:
        return ""
    return ", or set data.header if the files do not begin with the names of the columns"


def _difference(first: Sequence[str], names: Sequence[str]) -> str:
    if len(first) != len(names):
        return f"this file has {len(names)} columns, not {len(first)}"
    place, expected, found = next(
        (number, one, other)
        for number, (one, other) in enumerate(zip(first, names, strict=True), start=1)
        if one != other
    )
    return f"column {place} is {found}, not {expected}"
