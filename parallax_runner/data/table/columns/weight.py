"""`weight`: how much an example counts in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Faults, FeatureColumn, Role, State, TableFeature
from parallax_runner.data.table.stored_table import Cell, RawColumn, Strings


@dataclass(frozen=True)
class Weight(FeatureColumn):
    """Its feature is the number, float32."""

    kind: ClassVar[str] = "weight"
    role: ClassVar[Role] = Role.WEIGHT

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.NUMBER)

    def faults(self, cells: Cells, strings: Strings | None) -> Faults | None:
        is_weight = np.isfinite(cells.values) & (cells.values >= 0)
        rows = np.flatnonzero(~is_weight)
        if not len(rows):
            return None
        return Faults(rows, lambda place: f"the weight {cells.values[rows[place]]:g}; expected 0 or more")

    def described(self, state: State) -> TableFeature:
        return TableFeature(self.kind, (), "float32")

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        return {"": np.array(cells.values)}
