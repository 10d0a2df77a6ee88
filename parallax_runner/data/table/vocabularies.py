"""The vocabulary of a column in a run, and which rows of its table stand for the same strings in another run."""

from __future__ import annotations

import itertools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

LEARNED = "table.npz"  # the file with vocabularies and statistics in a run's folder and beside its checkpoints
FRESH = -1


@dataclass(frozen=True)
class Vocabulary:
    """String i has the id `first` + i. Ids below `first` are for padding and for other strings."""

    first: int
    words: list[bytes]


@runtime_checkable
class WithVocabularies(Protocol):
    """A `Dataset` whose columns have vocabularies."""

    def vocabulary_of(self, column: str) -> Vocabulary | None:
        """Returns the vocabulary of a column, or None if it has none."""
        ...

    def columns_with_vocabulary(self) -> list[str]:
        """Returns the names of the columns that have one."""
        ...


def vocabulary_in(folder: Path, column: str) -> Vocabulary | None:
    """Returns the vocabulary of a column in the file `LEARNED` of a folder, or None if there is none. Raises OSError or
    ValueError if the file cannot be read."""
    path = folder / LEARNED
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = [f"{column}/{part}" for part in ("vocabulary", "vocabulary_offsets", "first_id")]
            if not set(names) <= set(arrays.files):
                return None
            data, offsets, first = (arrays[name] for name in names)
    except (EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    text = data.tobytes()
    words = [text[start:end] for start, end in itertools.pairwise(offsets.tolist())]
    return Vocabulary(int(first), words)


def same_rows(old: Vocabulary, new: Vocabulary, rows: int) -> np.ndarray:
    """Returns for each of the `rows` rows of the new table the row of the old table that stands for the same string, or
    FRESH, int64 [rows]. Rows for padding and for other strings are the same if both tables have equally many."""
    found = np.full(rows, FRESH, dtype=np.int64)
    if old.first == new.first:
        found[: new.first] = np.arange(new.first)
    place_of = {word: old.first + place for place, word in enumerate(old.words)}
    places = [place_of.get(word, FRESH) for word in new.words]
    found[new.first : new.first + len(places)] = places[: rows - new.first]
    return found
