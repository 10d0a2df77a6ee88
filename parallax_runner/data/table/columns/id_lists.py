"""What the kinds share whose feature is a list of ids: `categories` and `text`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Counting, InputColumn, State, TableFeature
from parallax_runner.data.table.columns.ids import Ids
from parallax_runner.data.table.columns.keys import why_no_keys
from parallax_runner.data.table.columns.rule import Rule
from parallax_runner.data.table.stored_table import MISSING_CODE, MISSING_INTEGER, Strings


class IdLists(InputColumn):
    """A column with any number of values in a cell, which are ids or keys. Its feature is ragged, int64 [None], or with
    `padded_to` dense, int64 [padded_to]: 0 is padding, other ids are one higher than without padding, and values beyond
    `padded_to` are left out. Empty values are left out."""

    padded_to: int | None
    grows: bool

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """How a value becomes an id or a key."""

    @abstractmethod
    def values(self, raw: Any, tf: Any) -> Any:
        """Returns the values of each cell that are not empty, as a ragged tensor, from a tensor of raw values."""

    @property
    def first_id(self) -> int:
        return self.rule.first() + (self.padded_to is not None)

    def largest_state(self) -> State | None:
        return self.rule.largest_state()

    def why_not(self, ids: Ids, *, integers: bool) -> str | None:
        """Returns the reason why the settings do not fit together, or None. `ids` are those of ids."""
        padding = [] if self.padded_to is None else ["padded_to"]
        return why_no_keys(grows=self.grows, integers=integers, others=ids.given + padding) or ids.check()

    def counting(self, strings: Strings | None) -> Counting:
        return _WithoutEmpty(self.rule.counting(strings))

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        return self.rule.lookup(state, strings)

    def described(self, state: State) -> TableFeature:
        sizes = self.rule.sizes(state)
        if self.padded_to is None:
            return TableFeature(self.kind, (None,), "int64", sizes, is_ragged=True, grows=self.rule.grows)
        return TableFeature(self.kind, (self.padded_to,), "int64", tuple(size + 1 for size in sizes), is_padded=True)

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        kept = without_empty(cells)
        assert kept.lengths is not None
        ids = self.rule.of_values(kept.values, lookup)
        splits = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(kept.lengths, dtype=np.int64)])
        if self.padded_to is None:
            return {"values": ids, "row_splits": splits}
        return {"": _padded(ids, splits, self.padded_to)}

    def served(self, state: State, strings: Strings | None, raw: Any, tf: Any) -> dict[str, Any]:
        values = self.values(raw, tf)
        ids = values.with_values(self.rule.served(state, strings, values.values, tf))
        if self.padded_to is None:
            return {"values": ids.values, "row_splits": ids.row_splits}
        return {"": (ids + 1).to_tensor(0, shape=[None, self.padded_to])}


class _WithoutEmpty(Counting):
    """Counts all but empty values."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def add(self, cells: Cells) -> None:
        self._counting.add(without_empty(cells))

    def state(self) -> State:
        return self._counting.state()


def without_empty(cells: Cells) -> Cells:
    """Returns the cells of a list column without empty values."""
    assert cells.lengths is not None
    empty = MISSING_INTEGER if cells.values.dtype == np.int64 else MISSING_CODE
    is_value = cells.values != empty
    if is_value.all():
        return cells
    rows = np.repeat(np.arange(len(cells.lengths)), cells.lengths)
    return Cells(cells.values[is_value], np.bincount(rows[is_value], minlength=len(cells.lengths)))


def _padded(ids: np.ndarray, splits: np.ndarray, length: int) -> np.ndarray:
    """Returns the first `length` ids of each row, int64 [rows, length], each one higher, and 0 after the last."""
    lengths = np.diff(splits)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(ids)) - splits[rows]
    is_kept = places < length
    found = np.zeros((len(lengths), length), dtype=np.int64)
    found[rows[is_kept], places[is_kept]] = ids[is_kept] + 1
    return found
