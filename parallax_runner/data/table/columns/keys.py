"""How a string or an integer becomes the key of a vocabulary that grows, without a pass that counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Faults, State
from parallax_runner.data.table.columns.ids import rows_of
from parallax_runner.data.table.columns.rule import Rule
from parallax_runner.data.table.stored_table import MISSING_INTEGER, Cell, Strings
from parallax_runner.data.table.strings_of_codes import fingerprints


@dataclass(frozen=True)
class Keys(Rule):
    """The rule. The key of a string is its 64-bit fingerprint, that of an integer the integer itself.

    Of n strings, two have the same fingerprint with a probability of about n^2 / 2^65.
    """

    filler: ClassVar[int] = MISSING_INTEGER

    integers: bool

    @property
    def cell(self) -> Cell:
        return Cell.INTEGER if self.integers else Cell.STRING

    @property
    def grows(self) -> bool:
        return True

    def sizes(self, state: State) -> tuple[int, ...]:
        return ()

    def faults(self, cells: Cells) -> Faults | None:
        if not self.integers:
            return None
        places = np.flatnonzero(cells.values == MISSING_INTEGER)
        if not len(places):
            return None
        return Faults(rows_of(places, cells), lambda _: f"a blank cell or {MISSING_INTEGER}; expected another integer")

    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        if self.integers:
            return None
        assert strings is not None
        return fingerprints(strings)

    def is_item(self, integers: Any) -> Any:
        return integers > self.filler  # the smallest integer

    def served(self, state: State, strings: Strings | None, raw: Any, tf: Any) -> Any:
        return raw if self.integers else tf.bitcast(tf.fingerprint(raw), tf.int64)


def why_no_keys(*, grows: bool, integers: bool, others: Sequence[str]) -> str | None:
    """Returns the reason why the settings of a column do not fit together, or None. `others` are the settings that are
    given and have no meaning for keys."""
    if integers and not grows:
        return "expected grows: true beside integers: true; for integers below N, set ids: N"
    if grows and others:
        return f"expected grows without {', '.join(others)}, because the column has keys and no ids"
    return None
