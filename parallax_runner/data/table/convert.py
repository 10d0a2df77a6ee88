"""Converts files to a `StoredTable` in the user's cache. Only the first run on the files reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from parallax_runner.data.cache_folder import CacheFolder
from parallax_runner.data.table.bad_rows import BadRows
from parallax_runner.data.table.conversion import Plan, convert
from parallax_runner.data.table.lenient_reader import LenientReader
from parallax_runner.data.table.partition import Partition
from parallax_runner.data.table.readers import check_names, reader_of
from parallax_runner.data.table.sources import SourceFile, Sources, files_of, format_of
from parallax_runner.data.table.stored_folder import described_columns, read_table, write_absent
from parallax_runner.data.table.stored_table import TRAIN, RawColumn, StoredTable
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.process.limits import raise_if_limited
from parallax_runner.process.stage_times import stage

__all__ = ["BadRows", "Partition", "Sources", "stored_table"]

FORMAT = 2  # increase this when the layout of the folder or the meaning of a cell changes


def stored_table(
    sources: Sources,
    columns: Sequence[RawColumn],
    *,
    partition: Partition | None = None,
    bad_rows: BadRows | None = None,
    cache_dir: str | None = None,
    may_lack: Collection[str] = (),
) -> StoredTable:
    """Returns the columns of the files, memory-mapped. Files that are not for training may lack the columns
    `may_lack`.

    `cache_dir` defaults to $XDG_CACHE_HOME/parallax_runner, or ~/.cache/parallax_runner. Of several processes that need
    the same table, the first one makes it while the others wait. A damaged folder is made anew.

    Raises DataError if a file cannot be read, has bad rows or lacks a column, or if the cache cannot be written, and
    ConfigError if a setting is wrong.
    """
    limit = bad_rows or BadRows()
    _check_parts(sources, partition)
    files = files_of(sources)
    format_name = format_of(sources, files)
    lenient = sorted(may_lack)
    key = _fingerprint(sources, format_name, files, columns, partition, limit, lenient)
    cached = CacheFolder(cache_root(cache_dir) / key, "tables")
    with cached.alone():
        if not cached.is_intact():
            own = {part: found for part, found in files.items() if part != TRAIN}
            own_files = [file for found in own.values() for file in found]
            reader = LenientReader(reader_of(sources, format_name), own_files, lenient)
            plan = Plan(files, reader, tuple(columns), partition, limit)
            _check_columns(plan, own, lenient)
            with stage("converting files to arrays"):
                cached.publish(lambda folder: _write(plan, folder, reader.absent_of(own)))
        return _read(cached)


def _check_parts(sources: Sources, partition: Partition | None) -> None:
    for part in partition.parts if partition is not None else ():
        if part != TRAIN and part in sources.parts:
            raise ConfigError("expected either files for this part, or a share of the rows for training.").about(
                Setting.of(f"data.{part}", ", ".join(sources.parts[part])), Setting.of("data.partition", part)
            )


def _check_columns(plan: Plan, own: Mapping[str, Sequence[SourceFile]], may_lack: Collection[str]) -> None:
    check_names(plan.reader, plan.files[TRAIN], plan.read)
    for files in own.values():
        check_names(plan.reader, files, plan.own_read, may_lack=may_lack)


def _write(plan: Plan, folder: Path, absent: Mapping[str, Sequence[str]]) -> None:
    convert(plan, folder)
    write_absent(folder, absent)


def _fingerprint(
    sources: Sources,
    format_name: str,
    files: Mapping[str, Sequence[SourceFile]],
    columns: Sequence[RawColumn],
    partition: Partition | None,
    bad_rows: BadRows,
    may_lack: Sequence[str],
) -> str:
    """Returns 32 hexadecimal digits that change whenever the table may change. They depend on the names, sizes and
    modification times of the files, because reading the contents takes as long as converting them."""
    states = {part: [(one.name, one.size_bytes, one.changed_ns) for one in found] for part, found in files.items()}
    described: list[Any] = [
        *("table", FORMAT, format_name, sources.delimiter, sources.header, states, described_columns(columns)),
        None if partition is None else dataclasses.asdict(partition),
        dataclasses.asdict(bad_rows),
        may_lack,
    ]
    return cache_key(described)


def _read(cached: CacheFolder) -> StoredTable:
    try:
        return read_table(cached.path)
    except PermissionError as error:
        raise cached.of_another_user(error) from error
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise_if_limited(error)
        raise cached.damaged(error) from error
