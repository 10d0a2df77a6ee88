"""`category`: one string or integer, as an id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Counting, Faults, InputColumn, State, TableFeature
from parallax_runner.data.table.columns.ids import Ids, raw_values
from parallax_runner.data.table.columns.keys import Keys, why_no_keys
from parallax_runner.data.table.columns.rule import Rule
from parallax_runner.data.table.columns.settings import count, flag, optional, setting
from parallax_runner.data.table.stored_table import Cell, RawColumn, Strings


@dataclass(frozen=True)
class Category(InputColumn):
    """Its feature is an id or a key, int64. A blank cell is the empty string, a value like any other."""

    kind: ClassVar[str] = "category"

    hash: int | None = setting(None, optional(count))
    ids: int | None = setting(None, optional(count))
    min_count: int | None = setting(None, optional(count))
    max_size: int | None = setting(None, optional(count))
    oov: int | None = setting(None, optional(count))
    grows: bool = setting(False, flag)
    integers: bool = setting(False, flag)

    @property
    def rule(self) -> Rule:
        """How a value becomes an id or a key."""
        return Keys(self.integers) if self.grows else self._ids

    @property
    def _ids(self) -> Ids:
        return Ids(self.hash, self.ids, self.min_count, self.max_size, self.oov)

    @property
    def first_id(self) -> int:
        return self.rule.first()

    def largest_state(self) -> State | None:
        return self.rule.largest_state()

    def check(self) -> str | None:
        given = self._ids.given
        return why_no_keys(grows=self.grows, integers=self.integers, others=given) or self._ids.check()

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, self.rule.cell)

    def counting(self, strings: Strings | None) -> Counting:
        return self.rule.counting(strings)

    def faults(self, cells: Cells, strings: Strings | None) -> Faults | None:
        return self.rule.faults(cells)

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        return self.rule.lookup(state, strings)

    def described(self, state: State) -> TableFeature:
        return TableFeature(self.kind, (), "int64", self.rule.sizes(state), grows=self.rule.grows)

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        return {"": self.rule.of_values(cells.values, lookup)}

    def raw_input(self, tf: Any) -> Any:
        return tf.TensorSpec([None], tf.string if self.rule.cell is Cell.STRING else tf.int64)

    def raw_example(self, cells: Cells, strings: Strings | None) -> np.ndarray:
        return raw_values(cells.values, strings)

    def served(self, state: State, strings: Strings | None, raw: Any, tf: Any) -> dict[str, Any]:
        return {"": self.rule.served(state, strings, raw, tf)}
