"""`weight`: how much an example counts in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Column, Fault, Role, State, TableFeature
from parallax_runner.data.table.stored_table import Cell, RawColumn, Strings


@dataclass(frozen=True)
class Weight(Column):
    """Its feature is the number, float32."""

    kind: ClassVar[str] = "weight"
    role: ClassVar[Role] = Role.WEIGHT

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.NUMBER)

    def fault(self, cells: Cells, strings: Strings | None) -> Fault | None:
        is_weight = np.isfinite(cells.values) & (cells.values >= 0)
        bad = np.flatnonzero(~is_weight)
        return Fault(int(bad[0]), f"the weight {cells.values[bad[0]]:g}; expected 0 or more") if len(bad) else None

    def described(self, state: State) -> TableFeature:
        return TableFeature(self.kind, (), "float32")

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        return {"": np.array(cells.values)}
