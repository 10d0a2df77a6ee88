"""A tensor that is spread over servers or ranks in the same way as the rows of a placed variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import Content, Ids
from parallax_runner.analysis.update_region.rules import Operand
from parallax_runner.rewrite.placement import Placement


@dataclass(frozen=True, eq=False)
class ShardedValue:
    """A tensor in parts. `parts[k]` is on the device of shard k of `placement`.

    If the tensor is spread over the ranks, each rank has only its own part. Only values with the same `content` and
    layout can be combined part by part. If the parts belong to a list of rows that the model itself makes, `origin` is
    the tensor that the parts replace, and its rows are in the order that the model's own ops produce. Without `origin`,
    rows are in ascending order of ids.
    """

    parts: tuple[tf.Tensor, ...]
    placement: Placement
    content: Content
    origin: tf.Tensor | None = None

    @property
    def operand(self) -> Operand:
        """The operand that describes this value to the rules of the update region."""
        return Operand(self.parts[0].shape, self.content, self.placement.layout, self.placement.all_rows)

    def is_ids_in(self, placement: Placement) -> bool:
        """Returns whether the parts contain ids of rows in the placement's shards."""
        return isinstance(self.content, Ids) and self.placement.layout == placement.layout


Value: TypeAlias = tf.Tensor | ShardedValue
