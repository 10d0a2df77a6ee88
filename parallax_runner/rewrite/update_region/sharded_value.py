"""A tensor that is spread over servers, or over the ranks, in the way of a sharded variable's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Shard


class Kind(NamedTuple):
    """What a piece holds; only values of one kind can be combined piece by piece.

    «full»: all rows of the shard. The others are `of` a list of rows, which a gradient has or the model has made of
    gradients' lists: «rows», some numbers of each; «ids», where in the shard they belong; «places», where each of them
    stands in the same list without repeated ids; «count», how many they are; «shape», the same in a vector. «sum» is
    part of one.
    """

    what: str
    of: str = ""

    def as_(self, what: str) -> Kind:
        """Something else of the same list."""
        return Kind(what, self.of)


FULL = Kind("full")
SUM = Kind("sum")


@dataclass(frozen=True, eq=False)
class ShardedValue:
    """`pieces[k]` is where `shards[k]` is; of what is spread over the ranks each sees its own piece alone.

    `origin` is the tensor that the pieces stand for, where it is of a list that the model has made: how it stands in
    order only the model's own ops tell. Without it, rows are in the order of ascending ids.
    """

    pieces: tuple[tf.Tensor, ...]
    shards: tuple[Shard, ...]
    kind: Kind
    origin: tf.Tensor | None = None

    @property
    def layout(self) -> tuple[tuple[int, int, int, str], ...]:
        """Rows and devices; values on one layout have pieces that belong together."""
        return layout_of(self.shards)

    def matches(self, other: ShardedValue) -> bool:
        """Whether the two can be combined piece by piece."""
        return self.layout == other.layout and self.kind == other.kind

    @property
    def is_own(self) -> bool:
        """Whether this rank has a part of it, and the other ranks have the rest, in place of servers."""
        return self.shards[0].modulo is not None


def layout_of(shards: Sequence[Shard]) -> tuple[tuple[int, int, int, str], ...]:
    """Rows and devices of shards."""
    return tuple((shard.offset, shard.rows, shard.step, shard.device) for shard in shards)
