"""The lists of rows that an update region works on: of gradients, and what a model makes of those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class GradientList:
    """The rows of a sparse gradient of this name."""

    gradient: str


@dataclass(frozen=True)
class DistinctList:
    """A list without repeated ids."""

    of: RowList


@dataclass(frozen=True)
class JoinedList:
    """Several lists, one behind the other."""

    lists: tuple[RowList, ...]


@dataclass(frozen=True)
class DividedList:
    """A list, and the rows by which nothing can be divided in the divisor of the op `division` (slice_division.py)."""

    of: RowList
    division: str


RowList: TypeAlias = GradientList | DistinctList | JoinedList | DividedList
