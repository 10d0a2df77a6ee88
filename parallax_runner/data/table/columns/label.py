"""`label`: what the model predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Column, Fault, Role, State, TableFeature
from parallax_runner.data.table.columns.settings import optional, setting, texts
from parallax_runner.data.table.stored_table import Cell, RawColumn, Strings
from parallax_runner.data.table.strings_of_codes import strings_of

UNKNOWN = -1


@dataclass(frozen=True)
class Label(Column):
    """Its feature is the number, float32. With `classes`, cells are strings, and the feature is the place in the list,
    from 0 on, float32."""

    kind: ClassVar[str] = "label"
    role: ClassVar[Role] = Role.LABEL

    classes: tuple[str, ...] | None = setting(None, optional(texts))

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.NUMBER if self.classes is None else Cell.STRING)

    def fault(self, cells: Cells, strings: Strings | None) -> Fault | None:
        if self.classes is None:
            bad = np.flatnonzero(~np.isfinite(cells.values))
            return Fault(int(bad[0]), "no number; each row needs a label") if len(bad) else None
        assert strings is not None
        places = self.lookup({}, strings)
        assert places is not None
        bad = np.flatnonzero(places[cells.values] == UNKNOWN)
        if not len(bad):
            return None
        found = strings.bytes_of(int(cells.values[bad[0]])).decode(errors="replace")
        return Fault(int(bad[0]), f"{found!r}; expected one of {', '.join(self.classes)}")

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        if self.classes is None:
            return None
        assert strings is not None
        places = {word.encode(): place for place, word in enumerate(self.classes)}
        words = strings_of(strings, np.arange(strings.count))
        return np.array([places.get(word, UNKNOWN) for word in words], dtype=np.float32)

    def described(self, state: State) -> TableFeature:
        sizes = () if self.classes is None else (len(self.classes),)
        return TableFeature(self.kind, (), "float32", sizes)

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        return {"": cells.values.astype(np.float32) if lookup is None else lookup[cells.values]}
