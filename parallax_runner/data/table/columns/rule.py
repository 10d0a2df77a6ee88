"""The interface of a rule: how a string or an integer becomes a number that a model looks up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import NOTHING_LEARNED, Counting, Faults, State
from parallax_runner.data.table.stored_table import Cell, Strings


class Rule(ABC):
    """A rule. This class learns nothing from the training rows, and accepts all cells.

    `filler` is the integer that fills up the rows of a served list of integers.
    """

    filler: ClassVar[int]

    @property
    @abstractmethod
    def cell(self) -> Cell:
        """What a cell contains."""

    @property
    def grows(self) -> bool:
        """Whether the numbers are keys of a vocabulary that grows, which can be any integers."""
        return False

    def largest_state(self) -> State | None:
        """Returns a state with the largest vocabulary, or None if it has no limit."""
        return NOTHING_LEARNED

    @abstractmethod
    def sizes(self, state: State) -> tuple[int, ...]:
        """Returns the number of ids, or nothing if the numbers have no limit."""

    def first(self) -> int:
        """Returns the first id that stands for a single value."""
        return 0

    def counting(self, strings: Strings | None) -> Counting:
        """Returns a new pass over the training cells."""
        return Counting()

    def faults(self, cells: Cells) -> Faults | None:
        """Returns the values that the rule does not accept, or None if there are none."""
        return None

    @abstractmethod
    def lookup(self, state: State, strings: Strings | None) -> np.ndarray | None:
        """Returns the array that maps codes to numbers, or None if the values are the numbers."""

    def of_values(self, values: np.ndarray, lookup: np.ndarray | None) -> np.ndarray:
        """Returns the numbers, int64, of codes or integers."""
        return (values if lookup is None else lookup[values]).astype(np.int64)

    @abstractmethod
    def is_item(self, integers: Any) -> Any:
        """Returns which integers of a served list are none that fill up its rows (bool tensor)."""

    @abstractmethod
    def served(self, state: State, strings: Strings | None, raw: Any, tf: Any) -> Any:
        """Returns the numbers of a tensor of strings or integers, int64, with the ops of `tf`, TensorFlow."""
