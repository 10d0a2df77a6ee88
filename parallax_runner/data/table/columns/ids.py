"""How a string or an integer becomes an id: by its hash, by its place in a vocabulary, or as it is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import NOTHING_LEARNED, Counting, Faults, State
from parallax_runner.data.table.columns.rule import Rule
from parallax_runner.data.table.stored_table import MISSING_INTEGER, Cell, Strings
from parallax_runner.data.table.strings_of_codes import by_count_then_bytes, hashed, strings_of

CODES = "codes"  # of a vocabulary: the codes of its strings, in the order of their ids


@dataclass(frozen=True)
class Ids(Rule):
    """The rule. With `hash` or `ids`, ids are below that number. Otherwise, ids below `oov` are for strings that are
    not in the vocabulary, and the strings of the vocabulary follow, the most frequent first."""

    filler: ClassVar[int] = -1

    hash: int | None = None
    ids: int | None = None
    min_count: int | None = None
    max_size: int | None = None
    oov: int | None = None

    def check(self) -> str | None:
        """Returns the reason why the settings do not fit together, or None."""
        of_vocabulary = [word for word in ("min_count", "max_size", "oov") if getattr(self, word) is not None]
        given = [word for word in ("hash", "ids") if getattr(self, word) is not None]
        if len(given) == 2:
            return "expected one of hash and ids, not both"
        if given and of_vocabulary:
            return f"expected {given[0]} without {', '.join(of_vocabulary)}, which belong to a vocabulary"
        return None

    @property
    def given(self) -> list[str]:
        """The settings that are given."""
        return [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None]

    @property
    def cell(self) -> Cell:
        return Cell.STRING if self.ids is None else Cell.INTEGER

    @property
    def unknown(self) -> int:
        """The number of ids for strings that are not in the vocabulary."""
        return self.oov or 1

    @property
    def has_vocabulary(self) -> bool:
        """Whether the training rows determine the ids."""
        return self.hash is None and self.ids is None

    def largest_state(self) -> State | None:
        if not self.has_vocabulary:
            return NOTHING_LEARNED
        return None if self.max_size is None else {CODES: np.zeros(self.max_size, dtype=np.int32)}

    def sizes(self, state: State) -> tuple[int, ...]:
        return (self.size(state),)

    def size(self, state: State) -> int:
        """Returns the number of ids."""
        fixed = self.hash or self.ids
        return fixed or self.unknown + len(state[CODES])

    def first(self) -> int:
        return self.unknown if self.has_vocabulary else 0

    def counting(self, strings: Strings | None) -> Counting:
        if not self.has_vocabulary:
            return Counting()
        assert strings is not None
        return _Vocabulary(strings, self.min_count or 1, self.max_size)

    def faults(self, cells: Cells) -> Faults | None:
        if self.ids is None:
            return None
        values, expected = cells.values, f"expected 0 to {self.ids - 1}"
        places = np.flatnonzero((values < 0) | (values >= self.ids))
        if not len(places):
            return None
        return Faults(rows_of(places, cells), lambda place: f"{_told(values[places[place]])}; {expected}")

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        if self.ids is not None:
            return None
        assert strings is not None
        if self.hash is not None:
            return hashed(strings, self.hash)
        found = hashed(strings, self.unknown) if self.unknown > 1 else np.zeros(strings.count, dtype=np.int32)
        codes = state[CODES]
        found[codes] = self.unknown + np.arange(len(codes))
        return found

    def is_item(self, integers: Any) -> Any:
        return integers >= 0

    def served(self, state: State, strings: Strings | None, raw: Any, tf: Any) -> Any:
        if self.ids is not None:
            return raw
        if self.hash is not None:
            return tf.strings.to_hash_bucket_fast(raw, self.hash)
        assert strings is not None
        words = strings_of(strings, state[CODES])
        unknown = tf.strings.to_hash_bucket_fast(raw, self.unknown)
        if not words:
            return unknown
        places = np.arange(self.unknown, self.unknown + len(words))
        filled = tf.lookup.KeyValueTensorInitializer(tf.constant(words), tf.constant(places, tf.int64))
        found = tf.lookup.StaticHashTable(filled, default_value=-1).lookup(raw)
        return tf.where(found < 0, unknown, found)


class _Vocabulary(Counting):
    """Counts strings by their codes."""

    def __init__(self, strings: Strings, min_count: int, max_size: int | None) -> None:
        self._strings, self._min_count, self._max_size = strings, min_count, max_size
        self._counts = np.zeros(strings.count, dtype=np.int64)

    def add(self, cells: Cells) -> None:
        codes, counts = np.unique(cells.values, return_counts=True)
        self._counts[codes] += counts

    def state(self) -> State:
        """Returns the codes of the vocabulary. Of strings with the same count, the one with smaller bytes is first, so
        the order does not depend on the order of the rows."""
        frequent = np.flatnonzero(self._counts >= self._min_count)
        order = by_count_then_bytes(self._counts[frequent], self._strings, frequent)
        return {CODES: frequent[order[: self._max_size]].astype(np.int32)}


def raw_values(values: np.ndarray, strings: Strings | None) -> np.ndarray:
    """Returns the strings of codes, as an array of objects of the type bytes, or the integers as they are."""
    if values.dtype == np.int64:
        return values
    assert strings is not None
    found = np.empty(len(values), dtype=object)
    found[:] = strings_of(strings, values)
    return found


def rows_of(places: np.ndarray, cells: Cells) -> np.ndarray:
    """Returns the rows of values, int64."""
    if cells.lengths is None:
        return places
    return np.searchsorted(np.cumsum(cells.lengths), places, side="right")


def _told(value: np.int64) -> str:
    return "a blank cell" if value == MISSING_INTEGER else f"id {value}"
