"""A tensor that is spread over servers, or over the ranks, in the way of a sharded variable's rows."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Shard


@dataclass(frozen=True, eq=False)
class ShardedValue:
    """`pieces[k]` is where `shards[k]` is; of what is spread over the ranks each sees its own piece alone.

    `kind` tells what a piece holds; only values of one kind can be combined piece by piece: «full» all rows of the
    shard; «rows of G» some rows, those of gradient G's ids; «ids of G» where in the shard these ids' rows stand.
    """

    pieces: tuple[tf.Tensor, ...]
    shards: tuple[Shard, ...]
    kind: str

    @property
    def layout(self) -> tuple[tuple[int, int, int, str, tuple[int, ...]], ...]:
        """Rows and devices; values on one layout have pieces that belong together."""
        return tuple((shard.offset, shard.rows, shard.step, shard.device, shard.hot) for shard in self.shards)

    def matches(self, other: ShardedValue) -> bool:
        """Whether the two can be combined piece by piece."""
        return self.layout == other.layout and self.kind == other.kind

    @property
    def is_own(self) -> bool:
        """Whether this rank has a part of it, and the other ranks have the rest, in place of servers."""
        return self.shards[0].modulo is not None
