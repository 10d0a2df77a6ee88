"""What the parts of a tensor are that is spread over shards in the way of a variable's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from parallax_runner.analysis.update_region.row_list import RowList


@dataclass(frozen=True)
class FullRows:
    """All rows of the shard."""


@dataclass(frozen=True)
class PartialSum:
    """A part of one number."""


@dataclass(frozen=True)
class OfList:
    """Something of a list of rows."""

    of: RowList


class Rows(OfList):
    """Some numbers of each row of the list."""


class Ids(OfList):
    """Where in the shard the rows of the list belong."""


class Places(OfList):
    """Where each row of the list stands in the same list without repeated ids."""


class Count(OfList):
    """How many rows the list has."""


class Shape(OfList):
    """A vector that begins with how many rows the list has."""


Content: TypeAlias = FullRows | PartialSum | Rows | Ids | Places | Count | Shape
FULL_ROWS, PARTIAL_SUM = FullRows(), PartialSum()
