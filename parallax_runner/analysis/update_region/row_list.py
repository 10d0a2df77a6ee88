"""The lists of rows that an update region processes: lists from gradients, and lists that a model derives from
these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class GradientList:
    """The rows in the sparse gradient with this name."""

    gradient: str


@dataclass(frozen=True)
class DistinctList:
    """The list `of` without repeated ids."""

    of: RowList


@dataclass(frozen=True)
class JoinedList:
    """Several concatenated lists."""

    lists: tuple[RowList, ...]


@dataclass(frozen=True)
class DividedList:
    """The list `of`, plus the rows in which the divisor of the op `division` has a zero or NaN (slice_division.py)."""

    of: RowList
    division: str


RowList: TypeAlias = GradientList | DistinctList | JoinedList | DividedList
