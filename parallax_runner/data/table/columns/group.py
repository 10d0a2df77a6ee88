"""`group`: the examples that belong together, such as the answers to a query, for losses that compare them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import FeatureColumn, Role, State, TableFeature
from parallax_runner.data.table.stored_table import Cell, RawColumn


@dataclass(frozen=True)
class Group(FeatureColumn):
    """Its feature is a number, int64. Rows with the same string have the same number, in all parts of the table. A
    served model does not get it."""

    kind: ClassVar[str] = "group"
    role: ClassVar[Role] = Role.GROUP

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.STRING)

    def described(self, state: State) -> TableFeature:
        return TableFeature(self.kind, (), "int64")

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        return {"": cells.values.astype(np.int64)}
