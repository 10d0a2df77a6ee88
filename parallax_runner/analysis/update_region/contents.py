"""The contents of a tensor that is distributed over shards like a variable's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from parallax_runner.analysis.update_region.row_list import RowList


@dataclass(frozen=True)
class FullRows:
    """All rows of the shard."""


@dataclass(frozen=True)
class PartialSum:
    """A partial sum of a scalar."""


@dataclass(frozen=True)
class OfList:
    """A content that belongs to a list of rows."""

    of: RowList


class Rows(OfList):
    """Values for each row of the list."""


class Ids(OfList):
    """The positions in the shard of the rows of the list."""


class Places(OfList):
    """The position of each row of the list in the same list without repeated ids."""


class Count(OfList):
    """The number of rows of the list."""


class Shape(OfList):
    """A vector that begins with the number of rows of the list."""


Content: TypeAlias = FullRows | PartialSum | Rows | Ids | Places | Count | Shape
FULL_ROWS, PARTIAL_SUM = FullRows(), PartialSum()
