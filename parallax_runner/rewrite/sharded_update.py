"""Runs the update region on sharded values: what concerns one shard's rows is done where the shard is.

The region's ops are visited in order with the values their inputs have. An op on sharded rows that works row by row is
copied once a shard, onto its server; a sum over all rows becomes partial sums; an update op becomes one on each
shard. Any other op stays where it was and gets the rows brought together. Ops made for servers are the chief's to run;
of variables that are spread over the ranks each rank makes the copies for its own rows, and runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.edit import is_write
from parallax_runner.rewrite import over_ranks
from parallax_runner.rewrite.distributed_graph import Rewrite, Shard
from parallax_runner.rewrite.elementwise import ELEMENTWISE
from parallax_runner.rewrite.hot_rows import find_hot
from parallax_runner.rewrite.own_rows import look_up
from parallax_runner.rewrite.sent import Sent
from parallax_runner.rewrite.sharded_value import ShardedValue
from parallax_runner.rewrite.shards import gather, in_row_order

ON_IDS = frozenset({"Cast", "Identity"})
SCATTER = "ResourceScatter"
BY_IDS = ("ResourceSparseApply", SCATTER)

Value: TypeAlias = tf.Tensor | ShardedValue


@dataclass
class ShardedUpdate:
    """What the visit has found so far.

    `values` by tensor name where it is not the tensor itself; `copies` the ops that stand for an op of the region;
    `server_ops` all copies; `crossings` the Identity ops through which values leave the servers, and of which variable.
    """

    rewrite: Rewrite
    values: dict[str, Value]
    copies: dict[tf.Operation, list[tf.Operation]] = field(default_factory=dict)
    server_ops: set[tf.Operation] = field(default_factory=set)
    crossings: dict[tf.Operation, str] = field(default_factory=dict)
    joined: dict[ShardedValue, tf.Tensor] = field(default_factory=dict)
    orders: dict[ShardedValue, tf.Tensor] = field(default_factory=dict)
    observers: frozenset[tf.Operation] = frozenset()

    def visit_region(self) -> None:
        """Visits every op of the update region once."""
        for op in edit.in_order(set(self.rewrite.region)):
            if op.type != "VarHandleOp":
                self._visit(op)

    def visit_observers(self) -> None:
        """Visits the ops outside the region that read what it makes of gradients: they too are to see aggregates."""
        self.observers = frozenset(map(self.rewrite.op, self.rewrite.single.observers))
        for op in edit.in_order(set(self.observers)):
            self._visit(op)

    def _visit(self, op: tf.Operation) -> None:
        owner = self._sharded_handle(op)
        inputs = [self.values.get(tensor.name, tensor) for tensor in op.inputs]
        sharded = [value for value in inputs if isinstance(value, ShardedValue)]
        if owner is not None and (is_write(op) or op.type == "ReadVariableOp"):
            self._copy(op, inputs, self.rewrite.shards[owner], kind="full")
        elif owner is not None and op.type == "ResourceGather":
            self._look_up(op, inputs, self.rewrite.shards[owner])
        elif sharded and self._works_by_row(op, inputs, sharded):
            self._copy(op, inputs, list(sharded[0].shards), kind=sharded[0].kind)
        elif sharded and self._sums_all(op, sharded):
            self._sum_partially(op, inputs, list(sharded[0].shards))
        else:
            self._keep(op, inputs)

    def _sharded_handle(self, op: tf.Operation) -> str | None:
        names = [handle.name for handle in edit.handle_of(op) if handle.name in self.rewrite.shards]
        return names[0] if names else None

    def _works_by_row(self, op: tf.Operation, inputs: list[Value], sharded: list[ShardedValue]) -> bool:
        allowed = ON_IDS if sharded[0].kind.startswith("ids") else self._elementwise
        if op.type not in allowed or not all(value.matches(sharded[0]) for value in sharded):
            return False
        rank = sharded[0].pieces[0].shape.rank
        plain_ranks = [value.shape.rank for value in inputs if not isinstance(value, ShardedValue)]
        # A plain operand must mean the same for every row: it may only have the dimensions behind the first.
        return all(plain == 0 or (None not in (plain, rank) and plain < rank) for plain in plain_ranks)

    @property
    def _elementwise(self) -> frozenset[str]:
        return ELEMENTWISE if self.rewrite.plan.ps.boundary_among_servers else frozenset()

    def _sums_all(self, op: tf.Operation, sharded: list[ShardedValue]) -> bool:
        if not self.rewrite.plan.ps.boundary_among_servers:
            return False
        # What an owner has of hot rows is not theirs, and must not be counted.
        if any(value.kind == "full" and value.shards[-1].hot for value in sharded):
            return False
        is_sum = op.type == "L2Loss" or (op.type == "Sum" and op.outputs[0].shape.rank == 0)
        return is_sum and len(sharded) == 1 and not sharded[0].kind.startswith("ids")

    def _copy(self, op: tf.Operation, inputs: list[Value], shards: list[Shard], *, kind: str) -> None:
        copies = []
        for number, shard in enumerate(shards):
            copy = edit.clone(
                op,
                self._piece_inputs(op, inputs, shards, number),
                name=f"{op.name}/shard_{number}",
                control_inputs=self._controls(op, number, len(shards)),
                device=shard.device,
            )
            copies.append(copy)
        self.copies[op] = copies
        if shards[0].modulo is None:
            self.server_ops.update(copies)
        for index, output in enumerate(op.outputs):
            pieces = tuple(copy.outputs[index] for copy in copies)
            self.values[output.name] = ShardedValue(pieces=pieces, shards=tuple(shards), kind=kind)

    def _piece_inputs(self, op: tf.Operation, inputs: list[Value], shards: list[Shard], number: int) -> list[tf.Tensor]:
        is_cut = len(shards) > 1 or shards[0].modulo is not None
        if is_cut and op.type.startswith(SCATTER) and not isinstance(inputs[1], ShardedValue):
            return self._scattered(op, inputs[1], inputs[2], shards, number)
        return [
            self._piece(op, tensor, value, inputs, shards, number)
            for tensor, value in zip(op.inputs, inputs, strict=True)
        ]

    def _piece(
        self, op: tf.Operation, tensor: tf.Tensor, value: Value, inputs: list[Value], shards: list[Shard], number: int
    ) -> tf.Tensor:
        """What the copy for shard `number` reads in place of `tensor`."""
        if tensor.op.name in self.rewrite.shards:
            return self.rewrite.shards[tensor.op.name][number].handle
        layout = ShardedValue(pieces=(), shards=tuple(shards), kind="").layout
        if isinstance(value, ShardedValue):
            if value.layout == layout:
                return value.pieces[number]
            value = self._leave(value)
        if value.shape.rank == 0 or not is_write(op):
            return value
        if shards[0].modulo is not None:
            return self._own_rows_of(op, value, inputs, shards, number)
        if len(shards) == 1:
            return self._sent(value, shards[number])
        return self._rows_of(op, value, inputs, shards, number)

    def _rows_of(
        self, op: tf.Operation, value: tf.Tensor, inputs: list[Value], shards: list[Shard], number: int
    ) -> tf.Tensor:
        """The rows of a tensor that was brought together which belong to one shard."""
        if not op.type.startswith(BY_IDS):
            return self._sent(shards[number].take(value), shards[number])
        ids = tf.reshape(self._leave(_ids_among(op, inputs)), [-1])  # an accumulator's have no known rank
        return self._sent(tf.boolean_mask(value, tf.equal(ids % len(shards), number)), shards[number])

    def _scattered(
        self, op: tf.Operation, ids: tf.Tensor, updates: Value, shards: list[Shard], number: int
    ) -> list[tf.Tensor]:
        """Inputs of a scatter by ids that are not a gradient's, such as that of the padding's row: those of the shard's
        own rows."""
        shard, modulo, flat = shards[number], shards[0].modulo, tf.reshape(ids, [-1])
        if modulo is None:
            is_here = tf.equal(flat % len(shards), number)
            places = shard.places_of(tf.boolean_mask(flat, is_here))
        else:
            is_here = over_ranks.belongs(flat, shards, number)
            mine = tf.boolean_mask(flat, is_here)
            places = find_hot(mine, shard)[0] if shard.hot else mine // modulo.ranks
        value = self._leave(updates) if isinstance(updates, ShardedValue) else updates
        if value.shape.rank != 0:
            row_shape = op.inputs[0].op.get_attr("shape").dim[1:]
            value = tf.boolean_mask(tf.reshape(value, [-1, *(dim.size for dim in row_shape)]), is_here)
        found = [tf.cast(places, ids.dtype), value]
        return [shard.handle, *(self._sent(each, shard) if modulo is None else each for each in found)]

    def _own_rows_of(
        self, op: tf.Operation, value: tf.Tensor, inputs: list[Value], shards: list[Shard], number: int
    ) -> tf.Tensor:
        """The rows of a tensor that is whole on every rank which are this rank's own, or the hot ones."""
        if not op.type.startswith(BY_IDS):
            return shards[number].take(value)
        return tf.boolean_mask(value, over_ranks.belongs(self._leave(_ids_among(op, inputs)), shards, number))

    def _sent(self, tensor: tf.Tensor, shard: Shard) -> tf.Tensor:
        """The same tensor, counted as sent to the shard's server."""
        self.rewrite.sent.append(Sent(tensor, 1, shard.variable))
        return tensor

    def _look_up(self, op: tf.Operation, inputs: list[Value], shards: list[Shard]) -> None:
        """Rows of a sharded variable, by a gradient's own ids on their servers, or by any others through the chief."""
        ids = inputs[1]
        if isinstance(ids, ShardedValue):
            if ids.kind.startswith("ids") and ids.layout == ShardedValue((), tuple(shards), "").layout:
                self._copy(op, inputs, shards, kind=ids.kind.replace("ids", "rows", 1))
                return
            ids = self._leave(ids)
        if shards[0].modulo is not None:
            self._look_up_over_ranks(op, ids)
            return
        before = set(op.graph.get_operations())
        shape = tuple(tf.TensorShape(op.inputs[0].op.get_attr("shape")).as_list())
        with tf.control_dependencies(self._controls(op, 0, 0)), tf.name_scope(f"from_servers/{op.name}/lookup/"):
            rows = gather(self.rewrite, shards, ids, shape, is_exact=True)
        self.server_ops |= set(op.graph.get_operations()) - before
        self._replace(op, self._cross(rows, shards[0].variable, op.name))

    def _look_up_over_ranks(self, op: tf.Operation, ids: tf.Tensor) -> None:
        with tf.control_dependencies(self._controls(op, 0, 0)), tf.name_scope(f"over_ranks/{op.name}/"):
            (rows,), _ = look_up(self.rewrite, [self._sharded_handle(op) or ""], [ids], name="lookup", is_exact=True)
        self._replace(op, rows)

    def _replace(self, op: tf.Operation, value: tf.Tensor) -> None:
        """Lets the region read `value` for the output of `op`."""
        self.values[op.outputs[0].name] = value
        edit.reconnect(op.outputs[0], value, where=(self.rewrite.region | self.observers).__contains__)

    def _sum_partially(self, op: tf.Operation, inputs: list[Value], shards: list[Shard]) -> None:
        self._copy(op, inputs, shards, kind="")
        partial = self.values[op.outputs[0].name]
        assert isinstance(partial, ShardedValue)
        if partial.is_own:
            with tf.name_scope(f"over_ranks/{op.name}/"):
                own, *hot = partial.pieces
                self._replace(
                    op, tf.add_n([over_ranks.total(self.rewrite, own, shards[0].variable, name="total"), *hot])
                )
            return
        total = tf.add_n(list(partial.pieces)) if len(shards) > 1 else partial.pieces[0]
        self._replace(op, self._cross(total, shards[0].variable, op.name))

    def _keep(self, op: tf.Operation, inputs: list[Value]) -> None:
        replaced = {
            tensor.name: self._leave(value)
            for tensor, value in zip(op.inputs, inputs, strict=True)
            if isinstance(value, ShardedValue)
        }
        edit.reconnect_inputs(op, replaced)
        if any(control in self.copies for control in op.control_inputs):
            edit.set_control_inputs(op, self._controls(op, 0, 0))

    def _leave(self, value: ShardedValue) -> tf.Tensor:
        """The value as one tensor on the worker."""
        if value not in self.joined:
            if value.is_own:
                self.joined[value] = self._join_ranks(value)
            else:
                variable, name = value.shards[0].variable, value.pieces[0].op.name
                self.joined[value] = self._cross(self._join_servers(value), variable, name)
        return self.joined[value]

    def _join_servers(self, value: ShardedValue) -> tf.Tensor:
        """The value of all servers: in the order of rows, or of ascending ids."""
        if len(value.pieces) == 1:
            return tf.identity(value.pieces[0])
        if value.kind == "full":
            return in_row_order(value.pieces)
        if value.kind.startswith("ids"):
            return tf.sort(_ids_of_servers(value))
        return tf.gather(tf.concat(value.pieces, axis=0), self._by_ascending_id(value))

    def _join_ranks(self, value: ShardedValue) -> tf.Tensor:
        """The value of all ranks on each of them: in the order of rows, or of ascending ids."""
        with tf.name_scope(f"over_ranks/{value.pieces[0].op.name}/"):
            if value.kind == "full":
                return over_ranks.whole_on_all(self.rewrite, value.pieces, value.shards, name="whole")
            if value.kind.startswith("ids"):
                return tf.sort(over_ranks.ids_of_all(self.rewrite, value.pieces, value.shards, name="ids"))
            own, *hot = value.pieces
            of_all = over_ranks.concat(self.rewrite, own, value.shards[0].variable, name="rows")
            rows = tf.concat([of_all, *hot], axis=0)
            return tf.gather(rows, self._by_ascending_id(value))

    def _by_ascending_id(self, rows: ShardedValue) -> tf.Tensor:
        """Where the rows of ascending ids stand among those that come from rank 0, rank 1, … and the hot ones; or from
        the servers of shard 0, shard 1, …"""
        kind = rows.kind.replace("rows", "ids", 1)
        ids = next(each for each in self.values.values() if isinstance(each, ShardedValue) and each.kind == kind)
        if ids not in self.orders:
            if ids.is_own:
                all_ids = over_ranks.ids_of_all(self.rewrite, ids.pieces, ids.shards, name="order")
            else:
                all_ids = _ids_of_servers(ids)
            self.orders[ids] = tf.argsort(all_ids)
        return self.orders[ids]

    def _cross(self, tensor: tf.Tensor, variable: str, name: str) -> tf.Tensor:
        with tf.name_scope(f"from_servers/{name}/"):
            crossing = tf.identity(tensor)
        self.crossings[crossing.op] = variable
        self.rewrite.sent.append(Sent(crossing, 1, variable))
        return crossing

    def _controls(self, op: tf.Operation, number: int, shards: int) -> list[tf.Operation]:
        """Control inputs of `op` as they are now: of a copied op its copies, or only the copy for the same shard."""
        controls: list[tf.Operation] = []
        for control in op.control_inputs:
            copies = self.copies.get(control, [control])
            same = len(copies) == shards and control in self.copies
            controls += [copies[number]] if same and self._same_variable(op, control) else copies
        return controls

    def _same_variable(self, op: tf.Operation, control: tf.Operation) -> bool:
        return self._sharded_handle(op) is not None and self._sharded_handle(op) == self._sharded_handle(control)


def _ids_among(op: tf.Operation, inputs: list[Value]) -> ShardedValue:
    ids = [item for item in inputs if isinstance(item, ShardedValue) and item.kind.startswith("ids")]
    if not ids:
        raise PlanError(f"op «{op.name}» updates a sharded variable by ids that were changed on the way")
    return ids[0]


def _ids_of_servers(ids: ShardedValue) -> tf.Tensor:
    """The ids, counted from the variable's first row, of all shards' places, shard after shard."""
    return tf.concat([shard.ids_at(piece) for shard, piece in zip(ids.shards, ids.pieces, strict=True)], axis=0)
