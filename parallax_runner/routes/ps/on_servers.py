"""Places variables on servers, sharded by rows, and reads rows or whole variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import FullRows, Ids
from parallax_runner.graph.devices import server_device
from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.plan.plan import Shard as PlannedShard
from parallax_runner.rewrite.distributed_graph import Piece
from parallax_runner.rewrite.exchange.compression import compress, decompress
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.placement import Placement
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.row_order import row_order
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue


@dataclass(frozen=True, eq=False)
class OnServers(Placement):
    """Shards on servers. All ranks use the same shards. If every step waits for all ranks, the chief updates the
    shards."""

    @property
    def all_rows(self) -> int:
        """The number of rows of all shards together."""
        return sum(shard.rows for shard in self.shards)

    @property
    def is_cut(self) -> bool:
        """Whether there are several shards."""
        return len(self.shards) > 1

    @property
    def is_on_servers(self) -> bool:
        """Always true."""
        return True

    def look_up(self, update: ShardedUpdate, op: tf.Operation, ids: tf.Tensor) -> tf.Tensor:
        """Requests the rows from the servers."""
        before = set(op.graph.get_operations())
        shape = tuple(tf.TensorShape(op.inputs[0].op.get_attr("shape")).as_list())
        with tf.control_dependencies(update.controls_of(op)), tf.name_scope(f"from_servers/{op.name}/lookup/"):
            rows = gather(update.rewrite, self, ids, shape, is_exact=True)
        update.server_ops |= set(op.graph.get_operations()) - before
        return update.cross(rows, self.variable, op.name)

    def total(self, update: ShardedUpdate, op: tf.Operation, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Adds up the servers' partial sums."""
        total = tf.add_n(list(parts)) if self.is_cut else parts[0]
        # A rank that does not take the sum from the servers receives it from the chief. This Identity then reads the
        # received value.
        whole = tf.identity(update.cross(total, self.variable, op.name))
        update.rewrite.stands_for[op.outputs[0].name] = whole
        return whole

    def join(self, update: ShardedUpdate, value: ShardedValue) -> tf.Tensor:
        """Sends the parts of all servers to the worker."""
        return update.cross(self._joined(update, value), self.variable, value.parts[0].op.name)

    def _joined(self, update: ShardedUpdate, value: ShardedValue) -> tf.Tensor:
        if not self.is_cut:
            return tf.identity(value.parts[0])
        if isinstance(value.content, FullRows):
            return in_row_order(value.parts)
        if isinstance(value.content, Ids):
            return tf.sort(self.all_ids(update.rewrite, value.parts, name="ids"))
        return tf.gather(tf.concat(value.parts, axis=0), update.by_ascending_id(value))

    def all_ids(self, rewrite: Rewrite, places: Sequence[tf.Tensor], *, name: str) -> tf.Tensor:
        """Returns the ids, ordered by shard."""
        return tf.concat([shard.ids_at(part) for shard, part in zip(self.shards, places, strict=True)], axis=0)

    def pieces(self, rewrite: Rewrite, variable: Variable) -> list[Piece]:
        """Returns one piece for each shard. All ranks share these pieces."""
        found = []
        for shard in self.shards:
            first = tuple(variable.offset[:1])
            offset = (first[0] + shard.offset, *variable.offset[1:]) if first else ()
            shape = (shard.rows, *variable.shape[1:]) if variable.shape else ()
            found.append(Piece(handle=shard.handle, offset=offset, shape=shape, is_shared=True, step=shard.step))
        return found


def on_servers(rewrite: Rewrite, variable: str) -> OnServers:
    """Returns the placement of a variable on the ps route."""
    placement = rewrite.placement_of(variable)
    assert isinstance(placement, OnServers), variable
    return placement


def shard_handle(name: str, dtype: tf.DType, shape: tuple[int, ...], shard: PlannedShard, *, op_name: str) -> tf.Tensor:
    """Returns the handle of a shard of a variable, on its server.

    The shared name identifies the shard's rows, so old and new shards can exist at the same time while a variable is
    resharded (routes/ps/reshard.py).
    """
    with tf.device(server_device(shard.server)):
        return tf.raw_ops.VarHandleOp(
            dtype=dtype,
            shape=[shard.rows, *shape[1:]] if shape else [],
            shared_name=f"{name}/rows_{shard.offset}_{shard.rows}_{shard.step}",
            name=op_name,
        )


def read(rewrite: Rewrite, placement: OnServers, *, narrow: tf.DType | None = None) -> tf.Tensor:
    """Returns the whole variable, joined from its shards. If `narrow` is given, each shard is cast to this dtype before
    it is sent."""
    dtype = placement.shards[0].dtype
    parts = []
    for shard in placement.shards:
        with tf.device(shard.device):
            part = shard.read()
            parts.append(compress(rewrite, part if narrow in (None, dtype) else tf.cast(part, narrow)))
        rewrite.sent.append(Sent(parts[-1], 1, placement.variable))
    return decompress(rewrite, in_row_order(parts), narrow or dtype)


def in_row_order(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the whole variable [rows, ...], given the rows of all shards."""
    if len(parts) == 1:
        return parts[0]
    rows = [part.shape.dims[0].value for part in parts]
    counts = tf.stack([tf.shape(part)[0] for part in parts]) if None in rows else tf.constant(rows)
    whole = tf.gather(tf.concat(parts, axis=0), row_order(counts))
    whole.set_shape([None if None in rows else sum(rows), *parts[0].shape[1:]])
    return whole


def gather(
    rewrite: Rewrite,
    placement: OnServers,
    ids: tf.Tensor,
    shape: tuple[int, ...],
    *,
    narrow: tf.DType | None = None,
    is_exact: bool = False,
) -> tf.Tensor:
    """Looks up rows of a sharded variable. Each distinct id is sent once to its owner.

    If `narrow` is given, rows are cast to this dtype before they are sent. With `is_exact`, rows are never compressed,
    even if the plan uses compression.
    """
    distinct, places = tf.unique(tf.reshape(ids, [-1]))
    rows = _fetch(rewrite, placement, distinct, narrow, is_exact=is_exact)
    row_shape = tf.constant(shape[1:], tf.int32)
    result = tf.reshape(tf.gather(rows, places), tf.concat([tf.shape(ids), row_shape], axis=0))
    result.set_shape(ids.shape.concatenate(shape[1:]))
    return result


def _fetch(
    rewrite: Rewrite, placement: OnServers, distinct: tf.Tensor, narrow: tf.DType | None, *, is_exact: bool
) -> tf.Tensor:
    """Returns the rows [n, ...] with the ids `distinct` [n]. The options have the same meaning as in `gather`."""
    dtype = narrow or placement.shards[0].dtype
    parts, positions = partition_ids(distinct, len(placement.shards))
    rows = []
    for shard, part in zip(placement.shards, parts, strict=True):
        with tf.device(shard.device):
            found = tf.raw_ops.ResourceGather(resource=shard.handle, indices=shard.places_of(part), dtype=shard.dtype)
            cast = found if narrow is None else tf.cast(found, narrow)
            rows.append(cast if is_exact else compress(rewrite, cast))
        rewrite.sent += [Sent(each, 1, placement.variable) for each in (part, rows[-1])]
    together = rows[0] if len(rows) == 1 else tf.dynamic_stitch(positions, rows)
    return together if is_exact else decompress(rewrite, together, dtype)


def partition_ids(ids: tf.Tensor, shards: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Splits ids [n] by the shard that owns them. Returns each shard's ids and their positions in `ids`."""
    if shards == 1:
        return [ids], [tf.range(tf.size(ids))]
    owner = tf.cast(ids % shards, tf.int32)
    return (
        tf.dynamic_partition(ids, owner, shards),
        tf.dynamic_partition(tf.range(tf.size(ids)), owner, shards),
    )


def split_by_owner(values: tf.Tensor, ids: tf.Tensor, shards: int) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns the rows and ids of each shard, in their original order."""
    if shards == 1:
        return [(values, ids)]
    parts, positions = partition_ids(ids, shards)
    return [(tf.gather(values, position), part) for part, position in zip(parts, positions, strict=True)]
