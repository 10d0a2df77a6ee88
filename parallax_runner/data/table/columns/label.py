"""`label`: what the model predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import (
    NOTHING_LEARNED,
    Counting,
    Faults,
    FeatureColumn,
    Role,
    State,
    TableFeature,
)
from parallax_runner.data.table.columns.settings import optional, setting, texts
from parallax_runner.data.table.stored_table import Cell, RawColumn, Strings
from parallax_runner.data.table.strings_of_codes import strings_of

UNKNOWN = -1
LOW, HIGH = "low", "high"


@dataclass(frozen=True)
class Label(FeatureColumn):
    """Its feature is the number, float32. With `classes`, cells are strings, and the feature is the place in the list,
    from 0 on, float32."""

    kind: ClassVar[str] = "label"
    role: ClassVar[Role] = Role.LABEL

    classes: tuple[str, ...] | None = setting(None, optional(texts))

    @property
    def raw(self) -> RawColumn:
        return RawColumn(self.name, Cell.NUMBER if self.classes is None else Cell.STRING)

    def faults(self, cells: Cells, strings: Strings | None) -> Faults | None:
        if self.classes is None:
            rows = np.flatnonzero(~np.isfinite(cells.values))
            return Faults(rows, lambda place: "no number; each row needs a label") if len(rows) else None
        places = self.lookup(NOTHING_LEARNED, strings)
        assert strings is not None and places is not None
        rows = np.flatnonzero(places[cells.values] == UNKNOWN)
        if not len(rows):
            return None
        expected = f"expected one of {', '.join(self.classes)}"
        return Faults(rows, lambda place: f"{_text(strings, cells.values[rows[place]])!r}; {expected}")

    def counting(self, strings: Strings | None) -> Counting:
        return _Range() if self.classes is None else Counting()

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        if self.classes is None:
            return None
        assert strings is not None
        places = {word.encode(): place for place, word in enumerate(self.classes)}
        words = strings_of(strings, np.arange(strings.count))
        return np.array([places.get(word, UNKNOWN) for word in words], dtype=np.float32)

    def described(self, state: State) -> TableFeature:
        if self.classes is not None:
            highest = float(len(self.classes) - 1)
            return TableFeature(self.kind, (), "float32", (len(self.classes),), low=0.0, high=highest)
        if not state:
            return TableFeature(self.kind, (), "float32")
        return TableFeature(self.kind, (), "float32", low=float(state[LOW]), high=float(state[HIGH]))

    def features(self, state: State, cells: Cells, lookup: np.ndarray | None) -> dict[str, np.ndarray]:
        return {"": cells.values.astype(np.float32) if lookup is None else lookup[cells.values]}


class _Range(Counting):
    """Finds the smallest and the largest label, so that a model can refuse labels that do not fit its loss."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf

    def add(self, cells: Cells) -> None:
        if len(cells.values):
            self._low = min(self._low, float(cells.values.min()))
            self._high = max(self._high, float(cells.values.max()))

    def state(self) -> State:
        if self._low > self._high:
            return NOTHING_LEARNED
        return {LOW: np.array(self._low, np.float32), HIGH: np.array(self._high, np.float32)}


def _text(strings: Strings, code: int) -> str:
    return strings.bytes_of(code).decode(errors="replace")
