"""What the columns learn from the training rows: vocabularies, means and deviations."""

from __future__ import annotations

import hashlib
import io
import logging
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallax_runner.data.digest import DIGEST_CHARS, digest_of
from parallax_runner.data.table.cells import PartReader, arrays_of
from parallax_runner.data.table.columns.column import NOTHING_LEARNED, Column, State
from parallax_runner.data.table.columns.ids import CODES
from parallax_runner.data.table.stored_table import TRAIN, StoredTable
from parallax_runner.data.table.strings_of_codes import strings_of
from parallax_runner.errors import DataError, Setting
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.files.whole import write_whole

log = logging.getLogger(__name__)
FORMAT = 1  # increase this when the same rows would give other results
LEARNED = "table.npz"  # the file with vocabularies and statistics in a run's folder and beside its checkpoints
SEPARATOR = "/"  # between the number of a column and the name of an array


@dataclass(frozen=True)
class Fitted:
    """The states of columns, by name. A vocabulary consists of codes of the table from which it was made."""

    states: Mapping[str, State]

    def of(self, name: str) -> State:
        """Returns the state of a column."""
        return self.states.get(name, NOTHING_LEARNED)


def fitted(table: StoredTable, columns: Sequence[Column], *, cache_dir: str | None = None) -> Fitted:
    """Returns what the columns learn, from the cache if an earlier run has learned the same.

    Raises DataError for a cell that its column does not accept, in any part.
    """
    key = cache_key([FORMAT, table.digest, _other_parts(table), [repr(one) for one in columns]])
    path = cache_root(cache_dir) / "tables" / f"fitted-{key}.npz"
    found = _read(path, columns)
    if found is None:
        found = _learned(table, columns)
        _write(path, found, columns)
    return found


def numbering(table: StoredTable, columns: Sequence[Column], found: Fitted) -> str:
    """Returns a digest of all that gives the features of these columns their meaning."""
    digest = hashlib.sha256()
    for column in columns:
        state = found.of(column.name)
        digest.update(repr(column).encode())
        for name, array in sorted(state.items()):
            if name == CODES:
                digest.update(b"\0".join(strings_of(table.strings[column.name], array)))
            else:
                digest.update(array.tobytes())
    return digest.hexdigest()[:DIGEST_CHARS]


def save_readable(path: Path, table: StoredTable, columns: Sequence[Column], found: Fitted) -> None:
    """Writes the states to a file that needs no table. String i of a vocabulary is the bytes of `vocabulary` from
    `vocabulary_offsets[i]` to `vocabulary_offsets[i + 1]`. Raises OSError."""
    arrays = {}
    for column in columns:
        for name, array in found.of(column.name).items():
            key = f"{column.name}{SEPARATOR}"
            if name == CODES:
                words = strings_of(table.strings[column.name], array)
                arrays[f"{key}vocabulary"] = np.frombuffer(b"".join(words), dtype=np.uint8)
                arrays[f"{key}vocabulary_offsets"] = np.cumsum([0, *map(len, words)])
            else:
                arrays[f"{key}{name}"] = np.asarray(array)
    _save(path, arrays)


def _other_parts(table: StoredTable) -> dict[str, str]:
    """Returns digests of the parts that are only checked."""
    return {name: digest_of(arrays_of(part)) for name, part in sorted(table.parts.items()) if name != TRAIN}


def _learned(table: StoredTable, columns: Sequence[Column]) -> Fitted:
    """Reads all rows once: those for training are counted, and all are checked."""
    stored = [one for one in columns if one.raw is not None]
    passes = {one.name: one.counting(table.strings.get(one.name)) for one in stored}
    for part_name, part in table.parts.items():
        for start, cells in PartReader(table, part).chunks():
            for column in stored:
                fault = column.fault(cells[column.name], table.strings.get(column.name))
                if fault is not None:
                    raise _bad_cell(column, part_name, start + fault.row, fault.reason)
                if part_name == TRAIN:
                    passes[column.name].add(cells[column.name])
    return Fitted({name: one.state() for name, one in passes.items()})


def _bad_cell(column: Column, part: str, row: int, reason: str) -> DataError:
    return DataError(f"row {row + 1} of the rows for {part} has {reason}").about(
        Setting(f"data.columns.{column.name}.{column.kind}", None)
    )


def _read(path: Path, columns: Sequence[Column]) -> Fitted | None:
    """Returns the states in a file, or None if there is no such file. Ignores a damaged file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            read = {name: arrays[name] for name in arrays.files}
        states: dict[str, dict[str, np.ndarray]] = {}
        for name, array in read.items():
            number, _, key = name.partition(SEPARATOR)
            states.setdefault(columns[int(number)].name, {})[key] = array
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, IndexError, zipfile.BadZipFile) as error:
        log.warning("%s: damaged cache, counting anew: %s", path, error)
        return None
    return Fitted(states)


def _write(path: Path, found: Fitted, columns: Sequence[Column]) -> None:
    """Writes the states, if the cache can be written."""
    arrays = {
        f"{number}{SEPARATOR}{name}": np.asarray(array)
        for number, column in enumerate(columns)
        for name, array in found.of(column.name).items()
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(path, arrays)
    except OSError as error:
        log.warning("%s: cannot be written, so the next run counts again: %s", path, error)


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    written = io.BytesIO()
    np.savez(written, allow_pickle=False, **arrays)
    write_whole(path, written.getvalue())
