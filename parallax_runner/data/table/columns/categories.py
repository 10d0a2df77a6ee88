"""`categories`: any number of strings or integers in a cell, as ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Faults
from parallax_runner.data.table.columns.id_lists import IdLists, without_empty
from parallax_runner.data.table.columns.ids import Ids, raw_values
from parallax_runner.data.table.columns.keys import Keys
from parallax_runner.data.table.columns.rule import Rule
from parallax_runner.data.table.columns.settings import count, flag, optional, setting, text
from parallax_runner.data.table.stored_table import MISSING_INTEGER, Cell, RawColumn, Strings


@dataclass(frozen=True)
class Categories(IdLists):
    """A list of values, in text files with a `separator` between them. Without a `separator`, the files have lists."""

    kind: ClassVar[str] = "categories"

    hash: int | None = setting(None, optional(count))
    ids: int | None = setting(None, optional(count))
    min_count: int | None = setting(None, optional(count))
    max_size: int | None = setting(None, optional(count))
    oov: int | None = setting(None, optional(count))
    grows: bool = setting(False, flag)
    integers: bool = setting(False, flag)
    separator: str | None = setting(None, optional(text))
    padded_to: int | None = setting(None, optional(count))

    @property
    def rule(self) -> Rule:
        return Keys(self.integers) if self.grows else self._ids

    def check(self) -> str | None:
        return self.why_not(self._ids, integers=self.integers)

    @property
    def _ids(self) -> Ids:
        return Ids(self.hash, self.ids, self.min_count, self.max_size, self.oov)

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, self.rule.cell, is_list=True, separator=self.separator)

    def faults(self, cells: Cells, strings: Strings | None) -> Faults | None:
        # A row's number must stay, so only the values of integers that are missing are excused.
        excused = Cells(np.where(cells.values == MISSING_INTEGER, 0, cells.values), cells.lengths)
        return self.rule.faults(excused)

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
        filler = b"" if items.dtype == object else self.rule.filler
        found = np.full((len(rows), max(1, kept.lengths.max())), filler, items.dtype)
        for number, row in enumerate(rows):
            found[number, : len(row)] = row
        return found

    def values(self, raw: Any, tf: Any) -> Any:
        """See IdLists. Without a separator, empty strings fill up the rows. So do negative integers in lists of ids,
        and the smallest integer in lists of keys."""
        if self.separator is None:
            items = tf.RaggedTensor.from_tensor(raw)
            is_integer = self.rule.cell is Cell.INTEGER
            is_item = self.rule.is_item(items.values) if is_integer else tf.not_equal(items.values, "")
            return tf.ragged.boolean_mask(items, items.with_values(is_item))
        items = tf.strings.split(raw, self.separator)
        items = tf.ragged.boolean_mask(items, items.with_values(tf.not_equal(items.values, "")))
        if self.rule.cell is Cell.INTEGER:
            return items.with_values(tf.strings.to_number(tf.strings.strip(items.values), tf.int64))
        return items


def _written(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()
