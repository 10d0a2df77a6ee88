"""`id`: what names an example, such as a key of another table. It is no feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Column, Role, State, TableFeature
from parallax_runner.data.table.stored_table import Cell, RawColumn


@dataclass(frozen=True)
class Id(Column):
    """A string that is kept with the example. `TableDataset.ids` returns it."""

    kind: ClassVar[str] = "id"
    role: ClassVar[Role] = Role.KEPT

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.STRING)

    def described(self, state: State) -> TableFeature:
        raise NotImplementedError("an id is no feature")

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        raise NotImplementedError("an id is no feature")
