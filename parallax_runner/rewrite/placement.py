"""Where the rows of a variable are. The passes of a route make placements; updates and checkpoints ask them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.distributed_graph import Piece

if TYPE_CHECKING:
    from parallax_runner.rewrite.state import Rewrite
    from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
    from parallax_runner.rewrite.update_region.sharded_value import ShardedValue


@dataclass(frozen=True, eq=False)
class Shard:
    """`rows` rows of a variable, or of its slot, each `step`-th from row `offset` on, in `handle` on `device`."""

    handle: tf.Tensor
    offset: int
    rows: int
    device: str
    step: int = 1

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the values behind the handle."""
        return self.handle.op.get_attr("dtype")

    def read(self) -> tf.Tensor:
        """The values of the shard; the op goes on the current device."""
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def take(self, value: tf.Tensor) -> tf.Tensor:
        """The shard's rows of a value [rows, ...] of the whole variable."""
        return value[self.offset : self.offset + self.rows * self.step : self.step]

    def places_of(self, ids: tf.Tensor) -> tf.Tensor:
        """The places in the shard of rows by their ids; all ids are of rows that are here."""
        return ids if (self.offset, self.step) == (0, 1) else (ids - self.offset) // self.step

    def ids_at(self, places: tf.Tensor) -> tf.Tensor:
        """The ids of the shard's rows at these places."""
        return places * self.step + self.offset


@dataclass(frozen=True, eq=False)
class Placement(ABC):
    """The shards that this rank's graph has of a variable, or of its slot. `variable` is the variable of the plan."""

    variable: str
    shards: tuple[Shard, ...]

    @property
    def layout(self) -> tuple[tuple[int, int, int, str], ...]:
        """Rows and devices. Values on one layout have parts that belong together."""
        return tuple((shard.offset, shard.rows, shard.step, shard.device) for shard in self.shards)

    @property
    @abstractmethod
    def all_rows(self) -> int:
        """How many rows the variable has."""

    @property
    @abstractmethod
    def is_cut(self) -> bool:
        """Whether a shard has some of the rows only, so that ids of the variable are not places in it."""

    @property
    @abstractmethod
    def is_on_servers(self) -> bool:
        """Whether the shards are on servers: the chief runs the ops beside them, and values travel there and back."""

    @abstractmethod
    def look_up(self, update: ShardedUpdate, op: tf.Operation, ids: tf.Tensor) -> tf.Tensor:
        """The rows of any ids, on the worker, in place of the lookup `op` of the update region."""

    @abstractmethod
    def total(self, update: ShardedUpdate, op: tf.Operation, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """The sum of what `op` makes of each shard, on the worker."""

    @abstractmethod
    def join(self, update: ShardedUpdate, value: ShardedValue) -> tf.Tensor:
        """The whole value on the worker: in the order of rows, or of ascending ids."""

    @abstractmethod
    def all_ids(self, rewrite: Rewrite, places: Sequence[tf.Tensor], *, name: str) -> tf.Tensor:
        """The ids of rows by their places in the shards: of shard 0, shard 1, …"""

    @abstractmethod
    def pieces(self, rewrite: Rewrite, variable: Variable) -> list[Piece]:
        """What checkpoints see of it; `variable` may be a part of a larger one that the model has cut itself."""
