"""A tensor that is spread over servers, or over the ranks, in the way of a placed variable's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import Content, Ids
from parallax_runner.analysis.update_region.rules import Operand
from parallax_runner.rewrite.placement import Placement


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

    @property
    def operand(self) -> Operand:
        """The value as the rules of the update region see it."""
        return Operand(self.parts[0].shape, self.content, self.placement.layout, self.placement.all_rows)

    def is_ids_in(self, placement: Placement) -> bool:
        """Whether the parts are ids of rows of the placement's shards."""
        return isinstance(self.content, Ids) and self.placement.layout == placement.layout


Value: TypeAlias = tf.Tensor | ShardedValue
