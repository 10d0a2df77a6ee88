"""The lists of rows that an update region works on: those of gradients, and those that a model makes from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class GradientList:
    """The rows of the sparse gradient of this name."""

    gradient: str


@dataclass(frozen=True)
class DistinctList:
    """A list without repeated ids."""

    of: RowList


@dataclass(frozen=True)
class JoinedList:
    """Several concatenated lists."""

    lists: tuple[RowList, ...]


@dataclass(frozen=True)
class DividedList:
    """A list, and the rows with zero or NaN in the divisor of the op `division` (slice_division.py)."""

    of: RowList
    division: str


RowList: TypeAlias = GradientList | DistinctList | JoinedList | DividedList
