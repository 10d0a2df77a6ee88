"""Converts files to a `StoredTable` in the user's cache. Only the first run on the files reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
    """Returns the columns of the files, memory-mapped. The arguments and the errors are those of `Conversion`."""
    limit = bad_rows or BadRows()
    return Conversion.of(sources, columns, partition, limit, cache_dir=cache_dir, may_lack=may_lack).table()


@dataclass(frozen=True)
class Conversion:
    """Files to convert, and the folder of the cache for their table."""

    sources: Sources
    columns: tuple[RawColumn, ...]
    partition: Partition | None
    bad_rows: BadRows
    may_lack: tuple[str, ...]
    files: Mapping[str, list[SourceFile]]
    format_name: str
    cached: CacheFolder

    @classmethod
    def of(
        cls,
        sources: Sources,
        columns: Sequence[RawColumn],
        partition: Partition | None,
        bad_rows: BadRows,
        *,
        cache_dir: str | None,
        may_lack: Collection[str],
    ) -> Conversion:
        """Finds the files. Files that are not for training may lack the columns `may_lack`.

        `cache_dir` defaults to $XDG_CACHE_HOME/parallax_runner, or ~/.cache/parallax_runner. Raises DataError if a file
        does not exist, and ConfigError if a setting is wrong.
        """
        _check_parts(sources, partition)
        files = files_of(sources)
        format_name = format_of(sources, files)
        lenient = tuple(sorted(may_lack))
        key = _fingerprint(sources, format_name, files, columns, partition, bad_rows, lenient)
        cached = CacheFolder(cache_root(cache_dir) / key, "tables")
        return cls(sources, tuple(columns), partition, bad_rows, lenient, files, format_name, cached)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the table."""
        return tuple(dict.fromkeys([*self.files, *(self.partition.parts if self.partition is not None else ())]))

    def is_done(self) -> bool:
        """Returns whether the cache has the table."""
        return self.cached.path.exists()

    def check(self) -> None:
        """Reads the names of the columns in the files. Raises DataError if a file lacks one."""
        reader = self._reader()
        self._check_columns(self._plan(reader))

    def table(self) -> StoredTable:
        """Returns the table. Of several processes that need it, the first one makes it while the others wait. A damaged
        folder is made anew.

        Raises DataError if a file cannot be read, has bad rows or lacks a column, or if the cache cannot be written.
        """
        with self.cached.alone():
            if not self.cached.is_intact():
                reader = self._reader()
                plan = self._plan(reader)
                self._check_columns(plan)
                with stage("converting files to arrays"):
                    self.cached.publish(lambda folder: _write(plan, folder, reader.absent_of(self._own)))
            return _read(self.cached)

    @property
    def _own(self) -> dict[str, list[SourceFile]]:
        """The files of the parts that are not for training."""
        return {part: files for part, files in self.files.items() if part != TRAIN}

    def _reader(self) -> LenientReader:
        own_files = [file for files in self._own.values() for file in files]
        return LenientReader(reader_of(self.sources, self.format_name), own_files, self.may_lack)

    def _plan(self, reader: LenientReader) -> Plan:
        return Plan(self.files, reader, self.columns, self.partition, self.bad_rows)

    def _check_columns(self, plan: Plan) -> None:
        check_names(plan.reader, plan.files[TRAIN], plan.read)
        for files in self._own.values():
            check_names(plan.reader, files, plan.own_read, may_lack=self.may_lack)


def _check_parts(sources: Sources, partition: Partition | None) -> None:
    for part in partition.parts if partition is not None else ():
        if part != TRAIN and part in sources.parts:
            raise ConfigError("expected either files for this part, or a share of the rows for training.").about(
                Setting.of(f"data.{part}", ", ".join(sources.parts[part])), Setting.of("data.partition", part)
            )


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
