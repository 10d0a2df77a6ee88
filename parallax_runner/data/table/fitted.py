"""What the columns learn from the training rows: vocabularies, means and deviations."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from parallax_runner.data.digest import DIGEST_CHARS, digest_of
from parallax_runner.data.table.bad_cells import BadCells
from parallax_runner.data.table.bad_rows import BadRows
from parallax_runner.data.table.cells import PartReader, arrays_of, cells_of_rows
from parallax_runner.data.table.columns.column import NOTHING_LEARNED, OF_THE_LOSS, Column, State
from parallax_runner.data.table.columns.ids import CODES
from parallax_runner.data.table.stored_table import TRAIN, VALIDATION, StoredTable
from parallax_runner.data.table.strings_of_codes import CHUNK_STRINGS, strings_of
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.files.whole import write_whole

log = logging.getLogger(__name__)
FORMAT = 3  # increase this when the same rows would give other results
SKIPPED = "skipped"
SEPARATOR = "/"  # between the number of a column and the name of an array


@dataclass(frozen=True)
class Fitted:
    """The states of columns, by name. A vocabulary consists of codes of the table from which it was made. `skipped` has
    the rows of each part that are left out, because a column does not accept one of their cells, int64."""

    states: Mapping[str, State]
    skipped: Mapping[str, np.ndarray] = field(default_factory=dict)

    def of(self, name: str) -> State:
        """Returns the state of a column."""
        return self.states.get(name, NOTHING_LEARNED)


def fitted(
    table: StoredTable,
    columns: Sequence[Column],
    *,
    bad_rows: BadRows | None = None,
    cache_dir: str | None = None,
    evaluated_part: str | None = VALIDATION,
) -> Fitted:
    """Returns what the columns learn, from the cache if an earlier run has learned the same.

    Raises DataError for a cell that its column does not accept, or if `bad_rows` says that such rows are skipped, for
    too many of them. Inputs are checked in all parts, labels, weights and groups in those for training and in
    `evaluated_part`; None: in no other.
    """
    limit = bad_rows or BadRows()
    settings = [repr(one) for one in columns]
    key = [FORMAT, table.digest, _other_parts(table), settings, dataclasses.asdict(limit)]

    def path_of(labelled: Sequence[str]) -> Path:
        return cache_root(cache_dir) / "tables" / f"fitted-{cache_key([*key, labelled])}.npz"

    if evaluated_part is None:
        of_training = _read(path_of([TRAIN, VALIDATION]), columns)
        if of_training is not None and not of_training.skipped.keys() - {TRAIN}:
            return of_training
    labelled = [part for part in table.parts if part in (TRAIN, evaluated_part)]
    found = _read(path_of(labelled), columns)
    if found is None:
        found = _learned(table, columns, limit, labelled)
        _write(path_of(labelled), found, columns)
    return found


def numbering(table: StoredTable, columns: Sequence[Column], found: Fitted) -> str:
    """Returns a digest of all that gives the features of these columns their meaning."""
    digest = hashlib.sha256()
    for column in columns:
        state = found.of(column.name)
        digest.update(repr(column).encode())
        for name, array in sorted(state.items()):
            if name == CODES:
                for start in range(0, len(array), CHUNK_STRINGS):
                    words = strings_of(table.strings[column.name], array[start : start + CHUNK_STRINGS])
                    digest.update(b"".join(b"%d %b" % (len(word), word) for word in words))
            else:
                digest.update(array.tobytes())
    return digest.hexdigest()[:DIGEST_CHARS]


def save_readable(path: Path, table: StoredTable, columns: Sequence[Column], found: Fitted) -> None:
    """Writes the states to a file that needs no table. String i of a vocabulary is the bytes of `vocabulary` from
    `vocabulary_offsets[i]` to `vocabulary_offsets[i + 1]`, and has the id `first_id` + i. Raises OSError."""
    arrays = {}
    for column in columns:
        for name, array in found.of(column.name).items():
            key = f"{column.name}{SEPARATOR}"
            if name == CODES:
                words = strings_of(table.strings[column.name], array)
                arrays[f"{key}vocabulary"] = np.frombuffer(b"".join(words), dtype=np.uint8)
                arrays[f"{key}vocabulary_offsets"] = np.cumsum([0, *map(len, words)])
                arrays[f"{key}first_id"] = np.asarray(column.first_id)
            else:
                arrays[f"{key}{name}"] = np.asarray(array)
    _save(path, arrays)


def _other_parts(table: StoredTable) -> dict[str, str]:
    """Returns digests of the parts that are only checked."""
    return {name: digest_of(arrays_of(part)) for name, part in sorted(table.parts.items()) if name != TRAIN}


def _learned(table: StoredTable, columns: Sequence[Column], limit: BadRows, labelled: Collection[str]) -> Fitted:
    """Reads all rows once: all are checked, and those for training are counted. Labels are checked in the parts
    `labelled`."""
    stored = [one for one in columns if one.raw is not None]
    passes = {one.name: one.counting(table.strings.get(one.name)) for one in stored}
    bad_cells = BadCells(table, limit)
    for part_name, part in table.parts.items():
        checked = stored if part_name in labelled else _without_the_loss(stored)
        for start, cells in PartReader(table, part).chunks():
            is_good = bad_cells.checked(part_name, start, checked, cells)
            if part_name == TRAIN:
                for column in stored:
                    passes[column.name].add(cells_of_rows(cells[column.name], is_good))
    return Fitted({name: one.state() for name, one in passes.items()}, bad_cells.skipped())


def _without_the_loss(columns: Sequence[Column]) -> list[Column]:
    return [one for one in columns if one.role not in OF_THE_LOSS]


def _read(path: Path, columns: Sequence[Column]) -> Fitted | None:
    """Returns the states in a file, or None if there is no such file. Ignores a damaged file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            read = {name: arrays[name] for name in arrays.files}
        states: dict[str, dict[str, np.ndarray]] = {}
        skipped: dict[str, np.ndarray] = {}
        for name, array in read.items():
            number, _, key = name.partition(SEPARATOR)
            if number == SKIPPED:
                skipped[key] = array
            else:
                states.setdefault(columns[int(number)].name, {})[key] = array
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, IndexError, zipfile.BadZipFile) as error:
        log.warning("%s: damaged cache, counting anew: %s", path, error)
        return None
    return Fitted(states, skipped)


def _write(path: Path, found: Fitted, columns: Sequence[Column]) -> None:
    """Writes the states, if the cache can be written."""
    arrays = {
        f"{number}{SEPARATOR}{name}": np.asarray(array)
        for number, column in enumerate(columns)
        for name, array in found.of(column.name).items()
    }
    arrays |= {f"{SKIPPED}{SEPARATOR}{part}": rows for part, rows in found.skipped.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(path, arrays)
    except OSError as error:
        log.warning("%s: cannot be written, so the next run counts again: %s", path, error)


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    written = io.BytesIO()
    np.savez(written, allow_pickle=False, **arrays)
    write_whole(path, written.getvalue())
