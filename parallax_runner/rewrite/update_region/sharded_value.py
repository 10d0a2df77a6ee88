"""A tensor that is spread over servers, or over the ranks, in the way of a placed variable's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.placement import Placement
from parallax_runner.rewrite.update_region.row_list import RowList


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


@dataclass(frozen=True, eq=False)
class ShardedValue:
    """`parts[k]` is where shard k of `placement` is; of what is spread over the ranks each sees its own part alone.

    Only values with one `content` and one layout can be combined part by part. `origin` is the tensor that the parts
    stand for, where it is of a list that the model has made: only the model's own ops know its order. Without it, rows
    are in the order of ascending ids.
    """

    parts: tuple[tf.Tensor, ...]
    placement: Placement
    content: Content
    origin: tf.Tensor | None = None

    def matches(self, other: ShardedValue) -> bool:
        """Whether the two can be combined part by part."""
        return self.placement.layout == other.placement.layout and self.content == other.content

    def is_ids_in(self, placement: Placement) -> bool:
        """Whether the parts are ids of rows of the placement's shards."""
        return isinstance(self.content, Ids) and self.placement.layout == placement.layout


Value: TypeAlias = tf.Tensor | ShardedValue
