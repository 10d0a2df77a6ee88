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
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.placement import Placement, Shard
from parallax_runner.rewrite.state import Rewrite
from parallax_runner.rewrite.update_region.elementwise import ELEMENTWISE
from parallax_runner.rewrite.update_region.row_lists import made_contents
from parallax_runner.rewrite.update_region.sharded_value import (
    FULL_ROWS,
    PARTIAL_SUM,
    Content,
    FullRows,
    Ids,
    OfList,
    Rows,
    ShardedValue,
    Value,
)

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
        owner = self._owner(op)
        inputs = [self.values.get(tensor.name, tensor) for tensor in op.inputs]
        sharded = [value for value in inputs if isinstance(value, ShardedValue)]
        made = made_contents(op, inputs) if sharded and self.rewrite.plan.options.ps.boundary_among_servers else None
        if owner is not None and (is_write(op) or op.type == "ReadVariableOp"):
            self._copy(op, inputs, owner, contents=[FULL_ROWS])
        elif owner is not None and op.type == "ResourceGather":
            self._look_up(op, inputs, owner)
        elif sharded and self._works_by_row(op, inputs, sharded):
            self._copy(op, inputs, sharded[0].placement, contents=[sharded[0].content])
        elif made is not None:
            self._copy(op, inputs, sharded[0].placement, contents=made, is_made=True)
        elif sharded and self._sums_all(op, sharded):
            self._sum_partially(op, inputs, sharded[0].placement)
        else:
            self._keep(op, inputs)

    def _owner(self, op: tf.Operation) -> Placement | None:
        """Where the variable is that an op reads or writes, if it is placed."""
        name = self._placed_handle(op)
        return None if name is None else self.rewrite.placements[name]

    def _placed_handle(self, op: tf.Operation) -> str | None:
        names = [handle.name for handle in edit.handle_of(op) if handle.name in self.rewrite.placements]
        return names[0] if names else None

    def _works_by_row(self, op: tf.Operation, inputs: list[Value], sharded: list[ShardedValue]) -> bool:
        content = sharded[0].content
        allowed = ON_IDS if isinstance(content, Ids) else self._elementwise
        if (
            not isinstance(content, FullRows | Rows | Ids)
            or op.type not in allowed
            or not all(value.matches(sharded[0]) for value in sharded)
        ):
            return False
        rank = sharded[0].parts[0].shape.rank
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
        return ELEMENTWISE if self.rewrite.plan.options.ps.boundary_among_servers else frozenset()

    def _sums_all(self, op: tf.Operation, sharded: list[ShardedValue]) -> bool:
        if not self.rewrite.plan.options.ps.boundary_among_servers:
            return False
        return sums_to_number(op) and len(sharded) == 1 and isinstance(sharded[0].content, FullRows | Rows)

    def _copy(
        self,
        op: tf.Operation,
        inputs: list[Value],
        placement: Placement,
        *,
        contents: Sequence[Content],
        is_made: bool = False,
    ) -> None:
        """One copy a shard; `is_made`: the op makes a list of its own."""
        copies = []
        for number, shard in enumerate(placement.shards):
            copy = edit.clone(
                op,
                self._part_inputs(op, inputs, placement, number),
                name=f"{op.name}/shard_{number}",
                control_inputs=self._controls(op, number, len(placement.shards)),
                device=shard.device,
            )
            copies.append(copy)
        self.copies[op] = copies
        if placement.is_on_servers:
            self.server_ops.update(copies)
        is_made = is_made or any(isinstance(value, ShardedValue) and value.origin is not None for value in inputs)
        for index, (output, content) in enumerate(zip(op.outputs, contents, strict=False)):
            parts = tuple(copy.outputs[index] for copy in copies)
            self.values[output.name] = ShardedValue(parts, placement, content, origin=output if is_made else None)

    def _part_inputs(self, op: tf.Operation, inputs: list[Value], placement: Placement, number: int) -> list[tf.Tensor]:
        """What the copy for shard `number` reads."""
        found = {}
        if placement.is_cut and op.type.startswith(BY_IDS):
            found = self._by_ids(op, inputs, placement, number)
        return [
            found[at] if at in found else self._part(op, tensor, inputs[at], placement, number)
            for at, tensor in enumerate(op.inputs)
        ]

    def _part(self, op: tf.Operation, tensor: tf.Tensor, value: Value, placement: Placement, number: int) -> tf.Tensor:
        """What the copy for shard `number` reads in place of `tensor`, which is no list of rows by their ids."""
        if tensor.op.name in self.rewrite.placements:
            return self.rewrite.placements[tensor.op.name].shards[number].handle
        if isinstance(value, ShardedValue):
            if value.placement.layout == placement.layout:
                return value.parts[number]
            value = self.whole(value)
        if value.shape.rank == 0 or not is_write(op):
            return value
        rows = value if op.type.startswith(BY_IDS) else placement.shards[number].take(value)
        return self._sent(rows, placement)

    def _by_ids(self, op: tf.Operation, inputs: list[Value], placement: Placement, number: int) -> dict[int, tf.Tensor]:
        """What the copy of an update by ids for shard `number` reads of the ids and the rows, by input."""
        names = [argument.name for argument in op.op_def.input_arg]
        (ids_at,) = (at for at, name in enumerate(names) if name in IDS)
        (rows_at,) = (at for at, name in enumerate(names) if name in ROWS)
        ids, rows = inputs[ids_at], inputs[rows_at]
        own_ids = ids if isinstance(ids, ShardedValue) and ids.is_ids_in(placement) else None
        if own_ids is not None:
            if not isinstance(rows, ShardedValue):
                if rows.shape.rank == 0:
                    return {ids_at: own_ids.parts[number], rows_at: rows}
            elif _is_beside(rows, own_ids):
                return {ids_at: own_ids.parts[number], rows_at: rows.parts[number]}
        all_ids, all_rows = (self.whole(each) if isinstance(each, ShardedValue) else each for each in (ids, rows))
        flat_ids = tf.reshape(all_ids, [-1])  # an accumulator's have no known rank
        is_here, places = _in_shard(flat_ids, placement.shards[number])
        if all_rows.shape.rank != 0:
            row_shape = [dim.size for dim in op.inputs[0].op.get_attr("shape").dim[1:]]
            all_rows = tf.boolean_mask(tf.reshape(all_rows, [-1, *row_shape]), is_here)
        own_rows = self._sent(all_rows, placement)
        if own_ids is not None:
            return {ids_at: own_ids.parts[number], rows_at: own_rows}
        return {ids_at: self._sent(tf.cast(places, all_ids.dtype), placement), rows_at: own_rows}

    def _sent(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """The same tensor, counted as sent if it goes to a server."""
        if placement.is_on_servers:
            self.rewrite.sent.append(Sent(tensor, 1, placement.variable))
        return tensor

    def _look_up(self, op: tf.Operation, inputs: list[Value], placement: Placement) -> None:
        """Rows of a placed variable, by a gradient's own ids where they are, or by any others through the worker."""
        ids = inputs[1]
        if isinstance(ids, ShardedValue) and isinstance(ids.content, Ids) and ids.is_ids_in(placement):
            self._copy(op, inputs, placement, contents=[Rows(ids.content.of)])
            return
        self._replace(op, self._looked_up(op, ids, placement))

    def _looked_up(self, op: tf.Operation, ids: Value, placement: Placement) -> tf.Tensor:
        """Rows of a placed variable by ids that are whole, on the worker."""
        all_ids = self.whole(ids) if isinstance(ids, ShardedValue) else ids
        return placement.look_up(self, op, all_ids)

    def _replace(self, op: tf.Operation, value: tf.Tensor) -> None:
        """Lets the region read `value` for the output of `op`."""
        self.values[op.outputs[0].name] = value
        edit.reconnect(op.outputs[0], value, where=(self.rewrite.region | self.observers).__contains__)

    def _sum_partially(self, op: tf.Operation, inputs: list[Value], placement: Placement) -> None:
        self._copy(op, inputs, placement, contents=[PARTIAL_SUM])
        self._replace(op, placement.total(self, op, [copy.outputs[0] for copy in self.copies[op]]))

    def _keep(self, op: tf.Operation, inputs: list[Value]) -> None:
        replaced = {
            tensor.name: self.whole(value)
            for tensor, value in zip(op.inputs, inputs, strict=True)
            if isinstance(value, ShardedValue)
        }
        edit.reconnect_inputs(op, replaced)
        if any(control in self.copies for control in op.control_inputs):
            edit.set_control_inputs(op, self.controls_of(op))

    def whole(self, value: ShardedValue) -> tf.Tensor:
        """The value as one tensor on the worker."""
        if value not in self.joined:
            is_made = value.origin is not None
            self.joined[value] = self._made_whole(value.origin) if is_made else value.placement.join(self, value)
        return self.joined[value]

    def _made_whole(self, origin: tf.Tensor) -> tf.Tensor:
        """What stands in a list that the model has made: its own op, of what it reads as one tensor."""
        op = origin.op
        inputs = [self.values.get(tensor.name, tensor) for tensor in op.inputs]
        owner = self._owner(op)
        if owner is None:
            self._keep(op, inputs)
            return origin
        assert op.type == "ResourceGather"
        return self._looked_up(op, inputs[1], owner)

    def by_ascending_id(self, rows: ShardedValue) -> tf.Tensor:
        """Where the rows of ascending ids stand among those that come from rank 0, rank 1, … or from the servers of
        shard 0, shard 1, …"""
        assert isinstance(rows.content, OfList)
        wanted = Ids(rows.content.of)
        ids = next(each for each in self.values.values() if isinstance(each, ShardedValue) and each.content == wanted)
        if ids not in self.orders:
            self.orders[ids] = tf.argsort(ids.placement.all_ids(self.rewrite, ids.parts, name="order"))
        return self.orders[ids]

    def cross(self, tensor: tf.Tensor, variable: str, name: str) -> tf.Tensor:
        """A tensor of servers on the worker; whoever follows the chief receives it there."""
        with tf.name_scope(f"from_servers/{name}/"):
            crossing = tf.identity(tensor)
        self.crossings[crossing.op] = variable
        self.rewrite.sent.append(Sent(crossing, 1, variable))
        return crossing

    def controls_of(self, op: tf.Operation) -> list[tf.Operation]:
        """Control inputs of an op that stays on the worker: in place of copied ops all their copies."""
        return self._controls(op, 0, 0)

    def _controls(self, op: tf.Operation, number: int, shards: int) -> list[tf.Operation]:
        """Control inputs of `op` as they are now: of a copied op its copies, or only the copy for the same shard."""
        controls: list[tf.Operation] = []
        for control in op.control_inputs:
            copies = self.copies.get(control, [control])
            same = len(copies) == shards and control in self.copies
            controls += [copies[number]] if same and self._same_variable(op, control) else copies
        return controls

    def _same_variable(self, op: tf.Operation, control: tf.Operation) -> bool:
        return self._placed_handle(op) is not None and self._placed_handle(op) == self._placed_handle(control)


def _is_beside(rows: ShardedValue, ids: ShardedValue) -> bool:
    """Whether the parts of `rows` are the rows whose ids `ids` are."""
    assert isinstance(ids.content, Ids)
    return rows.placement.layout == ids.placement.layout and rows.content == Rows(ids.content.of)


def _in_shard(ids: tf.Tensor, shard: Shard) -> tuple[tf.Tensor, tf.Tensor]:
    """Which of any ids [n] are of a shard's rows, and the places of those in it."""
    is_here = tf.equal(ids % shard.step, shard.offset)
    return is_here, shard.places_of(tf.boolean_mask(ids, is_here))
