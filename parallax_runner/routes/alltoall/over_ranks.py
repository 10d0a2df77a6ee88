"""Placement of variables that are spread over the ranks, with row i on rank i mod ranks.

Collectives join the rows on all ranks or only on the chief.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import FullRows, Ids
from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.distributed_graph import Piece, PieceRead, StoredRows
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.exchange.sum_dtype import added, to_add
from parallax_runner.rewrite.placement import Placement, Shard
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.row_order import row_order
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue
from parallax_runner.routes.alltoall.lookup import ask, looked_up

# A variable is sent to the chief in messages of at most this size, so that the collectives of other ranks' steps can
# run in between.
MESSAGE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class RankRows(Piece):
    """A piece that is spread over the ranks.

    This rank has the rows of `shard`, and `own` reads these rows. `whole` contains all rows on the chief, and no rows
    on other ranks.
    """

    shard: Shard
    own: tf.Tensor
    whole: tf.Tensor

    @property
    def stored(self) -> StoredRows:
        """This rank's own rows."""
        return StoredRows(self.offset[0] + self.shard.offset, self.shard.rows, self.shard.step)

    @property
    def ranks(self) -> int | None:
        """The number of all ranks."""
        return self.shard.step

    @property
    def needs_all_ranks(self) -> bool:
        """True: every rank sends its rows to the chief."""
        return True

    def read(self) -> PieceRead:
        """Reads all rows on the chief, and no rows on other ranks. Each rank sends the values that its rows have when
        `own` runs."""
        return PieceRead(self.own.op, self.whole)

    def assign(self, values: tf.Tensor) -> tf.Operation:
        """Assigns this rank's own rows, taken from the values of all rows."""
        with tf.device(self.handle.op.device or None):
            own = self.shard.take(tf.ensure_shape(values, self.shape))
            return tf.raw_ops.AssignVariableOp(resource=self.handle, value=own)

    def assign_rows(self, values: tf.Tensor, is_taken: tf.Tensor) -> tf.Operation:
        """Assigns those of this rank's own rows where `is_taken` is true."""
        with tf.device(self.handle.op.device or None):
            own, own_is_taken = self.shard.take(tf.ensure_shape(values, self.shape)), self.shard.take(is_taken)
        return self._assign_own_rows(own, own_is_taken)


@dataclass(frozen=True, eq=False)
class OverRanks(Placement):
    """The placement of a variable with `rows` rows. This rank has every `ranks`-th row, starting with row `rank`."""

    rank: int
    ranks: int
    rows: int

    @property
    def own(self) -> Shard:
        """The only shard on this rank."""
        (shard,) = self.shards
        return shard

    @property
    def all_rows(self) -> int:
        """The number of rows on all ranks together."""
        return self.rows

    @property
    def is_cut(self) -> bool:
        """True: each rank has some of the rows."""
        return True

    @property
    def is_on_servers(self) -> bool:
        """False: the rows are on the ranks themselves."""
        return False

    def look_up(self, update: ShardedUpdate, op: tf.Operation, ids: tf.Tensor) -> tf.Tensor:
        """Requests the rows from their owners."""
        with tf.control_dependencies(update.controls_of(op)), tf.name_scope(f"over_ranks/{op.name}/"):
            asked = ask(update.rewrite, [self], [ids], name="lookup", is_exact=True)
            (rows,) = looked_up(asked, [[0]])
        return rows

    def total(self, update: ShardedUpdate, op: tf.Operation, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Adds up the ranks' partial sums."""
        (own,) = parts
        with tf.name_scope(f"over_ranks/{op.name}/"):
            return total(update.rewrite, own, self.variable, name="total")

    def join(self, update: ShardedUpdate, value: ShardedValue) -> tf.Tensor:
        """Sends the parts of all ranks to every rank."""
        (own,) = value.parts
        with tf.name_scope(f"over_ranks/{own.op.name}/"):
            if isinstance(value.content, FullRows):
                return whole_on_all(update.rewrite, own, self, name="whole")
            if isinstance(value.content, Ids):
                return tf.sort(self.all_ids(update.rewrite, value.parts, name="ids"))
            rows = concat(update.rewrite, own, self.variable, name="rows")
            return tf.gather(rows, update.by_ascending_id(value))

    def all_ids(self, rewrite: Rewrite, places: Sequence[tf.Tensor], *, name: str) -> tf.Tensor:
        """Returns the ids, ordered by rank."""
        (own,) = places
        return concat(rewrite, self.own.ids_at(own), self.variable, name=name)

    def pieces(self, rewrite: Rewrite, variable: Variable) -> list[Piece]:
        """Returns one piece. When the chief reads the piece, all ranks take part."""
        with tf.name_scope(f"own_rows/{variable.name}/"):
            own = self.own.read()
            whole = whole_on_chief(rewrite, own, self, name="whole")
        piece = RankRows(
            handle=self.own.handle,
            offset=variable.offset,
            shape=variable.shape,
            shard=self.own,
            own=own,
            whole=whole,
        )
        return [piece]

    def count(self, rank: int) -> int:
        """Returns how many rows `rank` owns."""
        return len(range(rank, self.rows, self.ranks))


def whole_on_all(rewrite: Rewrite, own: tf.Tensor, placement: OverRanks, *, name: str) -> tf.Tensor:
    """Returns all rows [rows, ...] on every rank, given this rank's own rows."""
    whole = tf.gather(concat(rewrite, own, placement.variable, name=name), _row_order(rewrite, placement))
    whole.set_shape([placement.rows, *own.shape[1:]])
    return whole


def concat(rewrite: Rewrite, own: tf.Tensor, variable: str, *, name: str) -> tf.Tensor:
    """Concatenates the tensors of all ranks, in rank order. The sent bytes are counted for the plan's variable
    `variable`."""
    from parallax_runner.collectives import ops as collectives

    own = tf.identity(own)  # counted only if this exchange is in the step
    rewrite.sent.append(Sent(own, rewrite.plan.workers - 1, variable))
    return collectives.concat_over_ranks(own, name=name)


def total(rewrite: Rewrite, own: tf.Tensor, variable: str, *, name: str) -> tf.Tensor:
    """Sums a tensor over all ranks. The sent bytes are counted for the plan's variable `variable`."""
    from parallax_runner.collectives import ops as collectives

    dtype, own = own.dtype, tf.identity(to_add(own))
    rewrite.sent.append(Sent(own, 2 * (rewrite.plan.workers - 1) / rewrite.plan.workers, variable))
    return added(collectives.sum_of_one(own, name=name), dtype)


def whole_on_chief(rewrite: Rewrite, own: tf.Tensor, placement: OverRanks, *, name: str) -> tf.Tensor:
    """Returns all rows [rows, ...] on rank 0, and no rows on other ranks."""
    from parallax_runner.collectives import ops as collectives

    ranks = placement.ranks
    row_bytes = max(1, own.dtype.size * (own.shape[1:].num_elements() or 1))
    rows_at_once = max(1, MESSAGE_BYTES // row_bytes)
    most = placement.count(0)
    came: list[list[tf.Tensor]] = []
    for number, start in enumerate(range(0, most, rows_at_once)):
        with tf.control_dependencies([parts[0].op for parts in came[-1:]]):
            part = own[start : start + rows_at_once]
            counts = tf.one_hot(0, ranks, tf.shape(part)[0], 0, dtype=tf.int32)
            message, sizes = collectives.all_to_all(part, counts, name=f"{name}/{number}")
            came.append(tf.split(message, sizes, num=ranks))
    by_rank = [part for rank in range(ranks) for part in (parts[rank] for parts in came)]
    together = tf.concat(by_rank, axis=0)
    if placement.rank != 0:
        return together
    whole = tf.gather(together, _row_order(rewrite, placement))
    whole.set_shape([placement.rows, *own.shape[1:]])
    return whole


def _row_order(rewrite: Rewrite, placement: OverRanks) -> tf.Tensor:
    """Returns the position of each row when rows are ordered by rank. Variables with the same number of rows share the
    result."""
    rows, orders = placement.rows, rewrite.row_orders
    if rows not in orders:
        counts = [placement.count(rank) for rank in range(placement.ranks)]
        dtype = tf.int32 if rows < 2**31 else tf.int64
        with tf.control_dependencies(None), tf.name_scope(f"row_order/{rows}/"):
            orders[rows] = row_order(tf.constant(counts, dtype))
    return orders[rows]
