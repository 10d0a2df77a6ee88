"""`categories`: any number of strings or integers in a cell, as ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Column, Counting, Faults, State, TableFeature
from parallax_runner.data.table.columns.ids import Ids, raw_values
from parallax_runner.data.table.columns.settings import count, optional, setting, text
from parallax_runner.data.table.stored_table import MISSING_CODE, MISSING_INTEGER, Cell, RawColumn, Strings


@dataclass(frozen=True)
class Categories(Column):
    """Its feature is ragged, int64 [None], or with `padded_to` dense, int64 [padded_to]: 0 is padding, other ids are
    one higher than without padding, and values beyond `padded_to` are left out. Empty items are left out. Without a
    `separator`, the files have lists."""

    kind: ClassVar[str] = "categories"

    hash: int | None = setting(None, optional(count))
    ids: int | None = setting(None, optional(count))
    min_count: int | None = setting(None, optional(count))
    max_size: int | None = setting(None, optional(count))
    oov: int | None = setting(None, optional(count))
    separator: str | None = setting(None, optional(text))
    padded_to: int | None = setting(None, optional(count))

    @property
    def rule(self) -> Ids:
        """How a value becomes an id."""
        return Ids(self.hash, self.ids, self.min_count, self.max_size, self.oov)

    @property
    def first_id(self) -> int:
        return self.rule.first() + (self.padded_to is not None)

    def check(self) -> str | None:
        return self.rule.check()

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, self.rule.cell, is_list=True, separator=self.separator)

    def counting(self, strings: Strings | None) -> Counting:
        return _WithoutEmpty(self.rule.counting(strings))

    def faults(self, cells: Cells, strings: Strings | None) -> Faults | None:
        # A row's number must stay, so only the values of integers that are missing are excused.
        excused = Cells(np.where(cells.values == MISSING_INTEGER, 0, cells.values), cells.lengths)
        return self.rule.faults(excused)

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        return self.rule.lookup(state, strings)

    def described(self, state: State) -> TableFeature:
        size = self.rule.size(state)
        if self.padded_to is None:
            return TableFeature(self.kind, (None,), "int64", (size,), is_ragged=True)
        return TableFeature(self.kind, (self.padded_to,), "int64", (size + 1,), is_padded=True)

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        kept = without_empty(cells)
        assert kept.lengths is not None
        ids = self.rule.of_values(kept.values, lookup)
        splits = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(kept.lengths, dtype=np.int64)])
        if self.padded_to is None:
            return {"values": ids, "row_splits": splits}
        return {"": _padded(ids, splits, self.padded_to)}

    def raw_input(self, tf: Any) -> Any:
        if self.separator is not None:
            return tf.TensorSpec([None], tf.string)
        return tf.TensorSpec([None, None], tf.string if self.rule.cell is Cell.STRING else tf.int64)

    def raw_example(self, cells: Cells, strings: Strings | None) -> np.ndarray:
        kept = without_empty(cells)
        assert kept.lengths is not None
        items = raw_values(kept.values, strings)
        rows = np.split(items, np.cumsum(kept.lengths)[:-1])
        if self.separator is not None:
            words = [self.separator.encode().join(map(_written, row)) for row in rows]
            return np.array(words, dtype=object)
        found = np.full((len(rows), max(1, kept.lengths.max())), b"" if items.dtype == object else -1, items.dtype)
        for number, row in enumerate(rows):
            found[number, : len(row)] = row
        return found

    def served(self, state: State, strings: Strings | None, raw: Any, tf: Any) -> dict[str, Any]:
        items = self._items(raw, tf)
        ids = items.with_values(self.rule.served(state, strings, items.values, tf))
        if self.padded_to is None:
            return {"values": ids.values, "row_splits": ids.row_splits}
        return {"": (ids + 1).to_tensor(0, shape=[None, self.padded_to])}

    def _items(self, raw: Any, tf: Any) -> Any:
        """Returns the items of each row that are not empty, ragged. Without a separator, empty strings and negative
        integers fill up the rows."""
        if self.separator is None:
            items = tf.RaggedTensor.from_tensor(raw)
            is_integer = self.rule.cell is Cell.INTEGER
            is_item = items.values >= 0 if is_integer else tf.not_equal(items.values, "")
            return tf.ragged.boolean_mask(items, items.with_values(is_item))
        items = tf.strings.split(raw, self.separator)
        items = tf.ragged.boolean_mask(items, items.with_values(tf.not_equal(items.values, "")))
        if self.rule.cell is Cell.INTEGER:
            return items.with_values(tf.strings.to_number(tf.strings.strip(items.values), tf.int64))
        return items


class _WithoutEmpty(Counting):
    """Counts all but empty items."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def add(self, cells: Cells) -> None:
        self._counting.add(without_empty(cells))

    def state(self) -> State:
        return self._counting.state()


def without_empty(cells: Cells) -> Cells:
    """Returns the cells of a list column without empty items."""
    assert cells.lengths is not None
    empty = MISSING_INTEGER if cells.values.dtype == np.int64 else MISSING_CODE
    is_item = cells.values != empty
    if is_item.all():
        return cells
    rows = np.repeat(np.arange(len(cells.lengths)), cells.lengths)
    return Cells(cells.values[is_item], np.bincount(rows[is_item], minlength=len(cells.lengths)))


def _written(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def _padded(ids: np.ndarray, splits: np.ndarray, length: int) -> np.ndarray:
    """Returns the first `length` ids of each row, int64 [rows, length], each one higher, and 0 after the last."""
    lengths = np.diff(splits)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(ids)) - splits[rows]
    is_kept = places < length
    found = np.zeros((len(lengths), length), dtype=np.int64)
    found[rows[is_kept], places[is_kept]] = ids[is_kept] + 1
    return found
