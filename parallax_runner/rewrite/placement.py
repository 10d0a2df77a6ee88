"""Describes where the rows of a variable are stored. The passes of a route create the placements. Updates and
checkpoints query the placements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.distributed_graph import Piece

if TYPE_CHECKING:
    from parallax_runner.rewrite.rewrite_state import Rewrite
    from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
    from parallax_runner.rewrite.update_region.sharded_value import ShardedValue


@dataclass(frozen=True, eq=False)
class Shard:
    """A shard of a variable or of one of its slots, stored in `handle` on `device`. The shard contains `rows` rows:
    every `step`-th row, starting at `offset`."""

    handle: tf.Tensor
    offset: int
    rows: int
    device: str
    step: int = 1

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the stored values."""
        return self.handle.op.get_attr("dtype")

    def read(self) -> tf.Tensor:
        """Reads the values of the shard, on the current device."""
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def take(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the shard's rows from a value [rows, ...] of the whole variable."""
        return value[self.offset : self.offset + self.rows * self.step : self.step]

    def places_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the positions of rows in the shard, given their ids. All ids must belong to rows in this shard."""
        return ids if (self.offset, self.step) == (0, 1) else (ids - self.offset) // self.step

    def ids_at(self, places: tf.Tensor) -> tf.Tensor:
        """Returns the ids of the shard's rows at the positions `places`."""
        return places * self.step + self.offset


@dataclass(frozen=True, eq=False)
class Placement(ABC):
    """The shards of a variable, or of one of its slots, in this rank's graph. `variable` is the variable's name in the
    plan."""

    variable: str
    shards: tuple[Shard, ...]

    @property
    def layout(self) -> tuple[tuple[int, int, int, str], ...]:
        """The rows and devices of the shards. Values with the same layout are split in the same way."""
        return tuple((shard.offset, shard.rows, shard.step, shard.device) for shard in self.shards)

    @property
    @abstractmethod
    def all_rows(self) -> int:
        """The number of rows of the variable."""

    @property
    @abstractmethod
    def is_cut(self) -> bool:
        """Whether each shard has only some of the rows. If so, the position of a row in its shard may differ from its
        id."""

    @property
    @abstractmethod
    def is_on_servers(self) -> bool:
        """Whether the shards are on servers. If so, the chief runs the ops that are placed on the servers, and values
        are sent to and from the servers."""

    @abstractmethod
    def look_up(self, update: ShardedUpdate, op: tf.Operation, ids: tf.Tensor) -> tf.Tensor:
        """Returns, on the worker, the rows with the given ids. The ids need not come from a gradient. The result
        replaces the lookup `op` of the update region."""

    @abstractmethod
    def total(self, update: ShardedUpdate, op: tf.Operation, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns, on the worker, the sum of `parts`, which are the results of `op` on the shards."""

    @abstractmethod
    def join(self, update: ShardedUpdate, value: ShardedValue) -> tf.Tensor:
        """Returns the whole value on the worker. If the value contains all rows of a variable, they are in row order.
        Otherwise, the rows are in ascending order of ids."""

    @abstractmethod
    def all_ids(self, rewrite: Rewrite, places: Sequence[tf.Tensor], *, name: str) -> tf.Tensor:
        """Returns the ids of rows, given their positions in shard 0, shard 1, …"""

    @abstractmethod
    def pieces(self, rewrite: Rewrite, variable: Variable) -> list[Piece]:
        """Returns the pieces that checkpoints read. `variable` may be a part of a variable that the model has
        partitioned."""
