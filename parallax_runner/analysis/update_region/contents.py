"""The contents of a tensor that is sharded in the same way as a variable's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from parallax_runner.analysis.update_region.row_list import RowList


@dataclass(frozen=True)
class FullRows:
    """All rows of the shard."""


@dataclass(frozen=True)
class PartialSum:
    """One shard's part of a sum that yields a scalar."""


@dataclass(frozen=True)
class OfList:
    """Content that belongs to a list of rows."""

    of: RowList


class Rows(OfList):
    """Values for each row of the list."""


class Ids(OfList):
    """The positions of the list's rows within the shard."""


class Places(OfList):
    """For each row in the list, the position of the row's id in the list of distinct ids."""


class Count(OfList):
    """The number of rows in the list."""


class Shape(OfList):
    """A vector whose first element is the number of rows in the list."""


Content: TypeAlias = FullRows | PartialSum | Rows | Ids | Places | Count | Shape
FULL_ROWS, PARTIAL_SUM = FullRows(), PartialSum()
