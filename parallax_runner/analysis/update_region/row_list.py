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


RowList: TypeAlias = GradientList | DistinctList | JoinedList
