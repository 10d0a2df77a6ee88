"""Runs the update region on sharded values: what concerns one shard's rows is done where the shard is.

The region's ops are visited in order with the values their inputs have. An op on sharded rows that works row by row is
copied once a shard, onto its server, and so is one that makes a list of rows of gradients' lists (row_lists.py); a sum
over all rows becomes partial sums; an update op becomes one on each shard. Any other op stays where it was and gets the
rows brought together. Ops made for servers are the chief's to run; of variables that are spread over the ranks each
rank makes the copies for its own rows, and runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.edit import is_write
from parallax_runner.graph.observers import is_number, sums_to_number
from parallax_runner.rewrite.distributed_graph import Rewrite, Shard
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.routes.alltoall import over_ranks
from parallax_runner.rewrite.routes.alltoall.own_rows import look_up
from parallax_runner.rewrite.routes.ps.shards import gather, in_row_order
from parallax_runner.rewrite.update_region.elementwise import ELEMENTWISE
from parallax_runner.rewrite.update_region.row_lists import Value, made_kinds
from parallax_runner.rewrite.update_region.sharded_value import FULL, SUM, Kind, ShardedValue, layout_of

ON_IDS = frozenset({"Cast", "Identity"})
SCATTER = "ResourceScatter"
BY_IDS = ("ResourceSparseApply", SCATTER)
# What ops that update by ids call the ids and what is for each of them.
IDS, ROWS = ("indices",), ("grad", "updates")


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
        made = made_kinds(op, inputs) if sharded and self.rewrite.plan.ps.boundary_among_servers else None
        if owner is not None and (is_write(op) or op.type == "ReadVariableOp"):
            self._copy(op, inputs, self.rewrite.shards[owner], kinds=[FULL])
        elif owner is not None and op.type == "ResourceGather":
            self._look_up(op, inputs, self.rewrite.shards[owner])
        elif sharded and self._works_by_row(op, inputs, sharded):
            self._copy(op, inputs, list(sharded[0].shards), kinds=[sharded[0].kind])
        elif made is not None:
            self._copy(op, inputs, list(sharded[0].shards), kinds=made, is_made=True)
        elif sharded and self._sums_all(op, sharded):
            self._sum_partially(op, inputs, list(sharded[0].shards))
        else:
            self._keep(op, inputs)

    def _sharded_handle(self, op: tf.Operation) -> str | None:
        names = [handle.name for handle in edit.handle_of(op) if handle.name in self.rewrite.shards]
        return names[0] if names else None

    def _works_by_row(self, op: tf.Operation, inputs: list[Value], sharded: list[ShardedValue]) -> bool:
        what = sharded[0].kind.what
        allowed = ON_IDS if what == "ids" else self._elementwise
        if (
            what not in ("full", "rows", "ids")
            or op.type not in allowed
            or not all(value.matches(sharded[0]) for value in sharded)
        ):
            return False
        rank = sharded[0].pieces[0].shape.rank
        plain_shapes = [value.shape for value in inputs if not isinstance(value, ShardedValue)]
        # A plain operand must mean the same for every row: it may only have the dimensions behind the first, or be one
        # number in as many dimensions.
        return all(
            plain.rank == 0
            or (None not in (plain.rank, rank) and (plain.rank < rank or (plain.rank == rank and is_number(plain))))
            for plain in plain_shapes
        )

    @property
    def _elementwise(self) -> frozenset[str]:
        return ELEMENTWISE if self.rewrite.plan.ps.boundary_among_servers else frozenset()

    def _sums_all(self, op: tf.Operation, sharded: list[ShardedValue]) -> bool:
        if not self.rewrite.plan.ps.boundary_among_servers:
            return False
        return sums_to_number(op) and len(sharded) == 1 and sharded[0].kind.what in ("full", "rows")

    def _copy(
        self,
        op: tf.Operation,
        inputs: list[Value],
        shards: list[Shard],
        *,
        kinds: Sequence[Kind],
        is_made: bool = False,
    ) -> None:
        """One copy a shard; `is_made`: the op makes a list of its own."""
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
        is_made = is_made or any(isinstance(value, ShardedValue) and value.origin is not None for value in inputs)
        for index, (output, kind) in enumerate(zip(op.outputs, kinds, strict=False)):
            pieces = tuple(copy.outputs[index] for copy in copies)
            origin = output if is_made else None
            self.values[output.name] = ShardedValue(pieces=pieces, shards=tuple(shards), kind=kind, origin=origin)

    def _piece_inputs(self, op: tf.Operation, inputs: list[Value], shards: list[Shard], number: int) -> list[tf.Tensor]:
        """What the copy for shard `number` reads."""
        is_cut = len(shards) > 1 or shards[0].modulo is not None
        found = {}
        if is_cut and op.type.startswith(BY_IDS):
            found = self._by_ids(op, inputs, shards, number)
        return [
            found[at] if at in found else self._piece(op, tensor, inputs[at], shards, number)
            for at, tensor in enumerate(op.inputs)
        ]

    def _piece(self, op: tf.Operation, tensor: tf.Tensor, value: Value, shards: list[Shard], number: int) -> tf.Tensor:
        """What the copy for shard `number` reads in place of `tensor`, which is no list of rows by their ids."""
        if tensor.op.name in self.rewrite.shards:
            return self.rewrite.shards[tensor.op.name][number].handle
        if isinstance(value, ShardedValue):
            if value.layout == layout_of(shards):
                return value.pieces[number]
            value = self._leave(value)
        if value.shape.rank == 0 or not is_write(op):
            return value
        rows = value if op.type.startswith(BY_IDS) else shards[number].take(value)
        return self._sent(rows, shards[number])

    def _by_ids(self, op: tf.Operation, inputs: list[Value], shards: list[Shard], number: int) -> dict[int, tf.Tensor]:
        """What the copy of an update by ids for shard `number` reads of the ids and the rows, by input."""
        names = [argument.name for argument in op.op_def.input_arg]
        (ids_at,) = (at for at, name in enumerate(names) if name in IDS)
        (rows_at,) = (at for at, name in enumerate(names) if name in ROWS)
        ids, rows = inputs[ids_at], inputs[rows_at]
        is_at_owners = isinstance(ids, ShardedValue) and ids.kind.what == "ids" and ids.layout == layout_of(shards)
        if is_at_owners:
            if not isinstance(rows, ShardedValue):
                if rows.shape.rank == 0:
                    return {ids_at: ids.pieces[number], rows_at: rows}
            elif (rows.layout, rows.kind) == (ids.layout, ids.kind.as_("rows")):
                return {ids_at: ids.pieces[number], rows_at: rows.pieces[number]}
        all_ids, all_rows = (self._leave(each) if isinstance(each, ShardedValue) else each for each in (ids, rows))
        is_here, places = _in_shard(tf.reshape(all_ids, [-1]), shards, number)  # an accumulator's have no known rank
        if all_rows.shape.rank != 0:
            row_shape = [dim.size for dim in op.inputs[0].op.get_attr("shape").dim[1:]]
            all_rows = tf.boolean_mask(tf.reshape(all_rows, [-1, *row_shape]), is_here)
        own_rows = self._sent(all_rows, shards[number])
        if is_at_owners:
            return {ids_at: ids.pieces[number], rows_at: own_rows}
        return {ids_at: self._sent(tf.cast(places, all_ids.dtype), shards[number]), rows_at: own_rows}

    def _sent(self, tensor: tf.Tensor, shard: Shard) -> tf.Tensor:
        """The same tensor, counted as sent to the shard's server if it has one."""
        if shard.modulo is None:
            self.rewrite.sent.append(Sent(tensor, 1, shard.variable))
        return tensor

    def _look_up(self, op: tf.Operation, inputs: list[Value], shards: list[Shard]) -> None:
        """Rows of a sharded variable, by a gradient's own ids on their servers, or by any others through the chief."""
        ids = inputs[1]
        if isinstance(ids, ShardedValue) and ids.kind.what == "ids" and ids.layout == layout_of(shards):
            self._copy(op, inputs, shards, kinds=[ids.kind.as_("rows")])
            return
        self._replace(op, self._looked_up(op, self._leave(ids) if isinstance(ids, ShardedValue) else ids))

    def _looked_up(self, op: tf.Operation, ids: tf.Tensor) -> tf.Tensor:
        """Rows of a sharded variable by ids that are whole, on the worker."""
        name = self._sharded_handle(op) or ""
        shards = self.rewrite.shards[name]
        if shards[0].modulo is not None:
            with tf.control_dependencies(self._controls(op, 0, 0)), tf.name_scope(f"over_ranks/{op.name}/"):
                (rows,), _ = look_up(self.rewrite, [name], [ids], name="lookup", is_exact=True)
            return rows
        before = set(op.graph.get_operations())
        shape = tuple(tf.TensorShape(op.inputs[0].op.get_attr("shape")).as_list())
        with tf.control_dependencies(self._controls(op, 0, 0)), tf.name_scope(f"from_servers/{op.name}/lookup/"):
            rows = gather(self.rewrite, shards, ids, shape, is_exact=True)
        self.server_ops |= set(op.graph.get_operations()) - before
        return self._cross(rows, shards[0].variable, op.name)

    def _replace(self, op: tf.Operation, value: tf.Tensor) -> None:
        """Lets the region read `value` for the output of `op`."""
        self.values[op.outputs[0].name] = value
        edit.reconnect(op.outputs[0], value, where=(self.rewrite.region | self.observers).__contains__)

    def _sum_partially(self, op: tf.Operation, inputs: list[Value], shards: list[Shard]) -> None:
        self._copy(op, inputs, shards, kinds=[SUM])
        partial = self.values[op.outputs[0].name]
        assert isinstance(partial, ShardedValue)
        if partial.is_own:
            with tf.name_scope(f"over_ranks/{op.name}/"):
                (own,) = partial.pieces
                self._replace(op, over_ranks.total(self.rewrite, own, shards[0].variable, name="total"))
            return
        total = tf.add_n(list(partial.pieces)) if len(shards) > 1 else partial.pieces[0]
        # Who does not take the sum from the servers receives it: then this reads what is received.
        whole = tf.identity(self._cross(total, shards[0].variable, op.name))
        self.rewrite.stands_for[op.outputs[0].name] = whole
        self._replace(op, whole)

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
            if value.origin is not None:
                self.joined[value] = self._made_whole(value.origin)
            elif value.is_own:
                self.joined[value] = self._join_ranks(value)
            else:
                variable, name = value.shards[0].variable, value.pieces[0].op.name
                self.joined[value] = self._cross(self._join_servers(value), variable, name)
        return self.joined[value]

    def _made_whole(self, origin: tf.Tensor) -> tf.Tensor:
        """What stands in a list that the model has made: its own op, of what it reads as one tensor."""
        op = origin.op
        inputs = [self.values.get(tensor.name, tensor) for tensor in op.inputs]
        if self._sharded_handle(op) is None:
            self._keep(op, inputs)
            return origin
        ids = inputs[1]
        assert op.type == "ResourceGather"
        return self._looked_up(op, self._leave(ids) if isinstance(ids, ShardedValue) else ids)

    def _join_servers(self, value: ShardedValue) -> tf.Tensor:
        """The value of all servers: in the order of rows, or of ascending ids."""
        if len(value.pieces) == 1:
            return tf.identity(value.pieces[0])
        if value.kind == FULL:
            return in_row_order(value.pieces)
        if value.kind.what == "ids":
            return tf.sort(_ids_of_servers(value))
        return tf.gather(tf.concat(value.pieces, axis=0), self._by_ascending_id(value))

    def _join_ranks(self, value: ShardedValue) -> tf.Tensor:
        """The value of all ranks on each of them: in the order of rows, or of ascending ids."""
        (own,), (shard,) = value.pieces, value.shards
        with tf.name_scope(f"over_ranks/{own.op.name}/"):
            if value.kind == FULL:
                return over_ranks.whole_on_all(self.rewrite, own, shard, name="whole")
            if value.kind.what == "ids":
                return tf.sort(over_ranks.ids_of_all(self.rewrite, own, shard, name="ids"))
            rows = over_ranks.concat(self.rewrite, own, shard.variable, name="rows")
            return tf.gather(rows, self._by_ascending_id(value))

    def _by_ascending_id(self, rows: ShardedValue) -> tf.Tensor:
        """Where the rows of ascending ids stand among those that come from rank 0, rank 1, … or from the servers of
        shard 0, shard 1, …"""
        kind = rows.kind.as_("ids")
        ids = next(each for each in self.values.values() if isinstance(each, ShardedValue) and each.kind == kind)
        if ids not in self.orders:
            if ids.is_own:
                all_ids = over_ranks.ids_of_all(self.rewrite, ids.pieces[0], ids.shards[0], name="order")
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


def _in_shard(ids: tf.Tensor, shards: list[Shard], number: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Which of any ids [n] are of a shard's rows, and the places of those in it."""
    shard = shards[number]
    is_here = tf.equal(ids % shard.step, shard.offset)
    return is_here, shard.places_of(tf.boolean_mask(ids, is_here))


def _ids_of_servers(ids: ShardedValue) -> tf.Tensor:
    """The ids, counted from the variable's first row, of all shards' places, shard after shard."""
    return tf.concat([shard.ids_at(piece) for shard, piece in zip(ids.shards, ids.pieces, strict=True)], axis=0)
