"""`id`: what names an example, such as a key of another table. It is no feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parallax_runner.data.table.columns.column import Column, Role
from parallax_runner.data.table.stored_table import Cell, RawColumn


@dataclass(frozen=True)
class Id(Column):
    """A string that is kept with the example. `TableDataset.ids` returns it."""

    kind: ClassVar[str] = "id"
    role: ClassVar[Role] = Role.KEPT

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.STRING)
