"""Runs the update region on sharded values. Ops on a shard's rows are placed on the shard's device.

The region's ops are visited in topological order, so the values of an op's inputs are known when the op is visited. The
rules in analysis/update_region determine which ops are copied to each shard's device, and which sums are split into a
partial sum for each shard. An update op becomes one op on each shard. Any other op stays on the worker and reads the
joined rows. The chief runs the ops on servers. For variables that are spread over the ranks, each rank creates and runs
the copies for its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.rows_written import BY_IDS
from parallax_runner.analysis.update_region.contents import (
    FULL_ROWS,
    PARTIAL_SUM,
    Content,
    Ids,
    OfList,
    Rows,
)
from parallax_runner.analysis.update_region.rules import (
    ANSWERS,
    ON_IDS,
    Divides,
    InParts,
    Known,
    OnShards,
    Operand,
    PassedOn,
    Treatment,
    treatment,
)
from parallax_runner.analysis.update_region.slice_division import slice_division
from parallax_runner.graph import edit
from parallax_runner.graph.branches import IF_TYPES
from parallax_runner.graph.edit import is_write
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.placement import Placement
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.update_region.own_division import own_inputs
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue, Value
from parallax_runner.rewrite.update_region.update_by_ids import inputs_by_ids

# The input of UnsortedSegmentSum that has this index is the number of rows in the result.
NUM_SEGMENTS = 2


@dataclass
class ShardedUpdate:
    """A traversal of the update region, and its results so far.

    `values` maps a tensor name to the tensor's value, if the value is not the tensor itself. At first, `values`
    contains the aggregates of gradients. `copies` maps an op of the region to the ops that replace it. `server_ops` are
    all copies on servers. The keys of `crossings` are the Identity ops through which values leave the servers. Each op
    maps to the variable that its value belongs to. `behind` maps an op to the variables whose aggregates the op waits
    for.
    """

    rewrite: Rewrite
    values: dict[str, Value]
    copies: dict[tf.Operation, list[tf.Operation]] = field(default_factory=dict)
    server_ops: set[tf.Operation] = field(default_factory=set)
    crossings: dict[tf.Operation, str] = field(default_factory=dict)
    joined: dict[ShardedValue, tf.Tensor] = field(default_factory=dict)
    orders: dict[ShardedValue, tf.Tensor] = field(default_factory=dict)
    observers: frozenset[tf.Operation] = frozenset()
    behind: dict[tf.Operation, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.divisions = {op: slice_division(op) for op in self.rewrite.region if op.type in IF_TYPES}
        self.aggregates = {name: value for name, value in self.values.items() if isinstance(value, ShardedValue)}

    @property
    def all_copies(self) -> set[tf.Operation]:
        """All ops that replace ops of the region."""
        return {copy for copies in self.copies.values() for copy in copies}

    def visit_region(self) -> None:
        """Visits each op of the update region once."""
        for op in edit.in_order(set(self.rewrite.region)):
            if op.type != "VarHandleOp":
                self._visit(op)

    def visit_observers(self) -> None:
        """Visits the ops outside the region that read the region's results. These ops then also read aggregated
        gradients. Those that read rows of the ranks stay as they are: an exchange for them would need all ranks, and
        nobody can fetch them (api/fetch_check.py)."""
        self.observers = frozenset(map(self.rewrite.op, self.rewrite.single.observers))
        for op in edit.in_order(set(self.observers)):
            if not self._reads_rows_of_ranks(op):
                self._visit(op)

    def _reads_rows_of_ranks(self, op: tf.Operation) -> bool:
        values = [self.values.get(tensor.name) for tensor in op.inputs]
        placements = [value.placement for value in values if isinstance(value, ShardedValue)]
        return any(not placement.is_on_servers for placement in placements)

    def _visit(self, op: tf.Operation) -> None:
        self.behind[op] = self._waited_for(op)
        owner = self._owner(op)
        inputs = [self.values.get(tensor.name, tensor) for tensor in op.inputs]
        if owner is not None and (is_write(op) or op.type == "ReadVariableOp"):
            self._copy(op, inputs, owner, contents=[FULL_ROWS])
        elif owner is not None and op.type == "ResourceGather":
            self._look_up(op, inputs, owner)
        else:
            self._treat(op, inputs, self._treatment(op, inputs))

    def _waited_for(self, op: tf.Operation) -> frozenset[str]:
        needs = [self.behind.get(each, frozenset()) for each in (*(i.op for i in op.inputs), *op.control_inputs)]
        direct = {self.aggregates[i.name].placement.variable for i in op.inputs if i.name in self.aggregates}
        return frozenset(direct).union(*needs)

    def _treat(self, op: tf.Operation, inputs: list[Value], how: Treatment) -> None:
        placements = [value.placement for value in inputs if isinstance(value, ShardedValue)]
        if isinstance(how, OnShards):
            self._copy(op, inputs, placements[0], contents=how.contents, is_made=how.is_made)
        elif isinstance(how, InParts):
            self._sum_partially(op, inputs, placements[0])
        elif isinstance(how, Divides):
            self._divide(op, inputs, how)
        elif isinstance(how, PassedOn):
            self._pass_on(op, inputs)
        elif isinstance(how, Known):
            self._replace(op.outputs[0], tf.constant(how.value, op.outputs[0].dtype))
        else:
            self._keep(op, inputs)

    def _treatment(self, op: tf.Operation, inputs: list[Value]) -> Treatment:
        operands = [value.operand if isinstance(value, ShardedValue) else Operand(value.shape) for value in inputs]
        how = treatment(op, operands, self.divisions.get(op))
        if not isinstance(how, OnShards | InParts | Divides):
            return how
        is_on_servers = any(isinstance(value, ShardedValue) and value.placement.is_on_servers for value in inputs)
        if self.rewrite.plan.options.ps.boundary_among_servers or not is_on_servers:
            return how
        return how if op.type in ON_IDS and isinstance(operands[0].content, Ids) else None

    def _owner(self, op: tf.Operation) -> Placement | None:
        """Returns the placement of the variable that an op reads or writes, or None if the variable is not placed."""
        name = self._placed_handle(op)
        return None if name is None else self.rewrite.placements[name]

    def _placed_handle(self, op: tf.Operation) -> str | None:
        names = [handle.name for handle in edit.handle_of(op) if handle.name in self.rewrite.placements]
        return names[0] if names else None

    def _copy(
        self,
        op: tf.Operation,
        inputs: list[Value],
        placement: Placement,
        *,
        contents: Sequence[Content],
        is_made: bool = False,
        given: Sequence[dict[int, tf.Tensor]] = (),
    ) -> None:
        """Creates one copy of `op` for each shard.

        If `is_made`, the outputs are derived only from row lists that the model itself creates. `given` contains a
        dict for each copy. The dict maps the index of an input to the tensor that the copy reads instead of its part of
        this input.
        """
        copies = []
        for number, shard in enumerate(placement.shards):
            own = given[number] if given else {}
            copy = edit.clone(
                op,
                self._part_inputs(op, inputs, placement, number, contents, own),
                name=f"{op.name}/shard_{number}",
                control_inputs=[
                    *self._controls(op, number, len(placement.shards)),
                    *self._before_write(op, placement, number),
                ],
                device=shard.device,
            )
            copies.append(copy)
        self.copies[op] = copies
        if placement.is_on_servers:
            self.server_ops.update(copies)
        for index, (output, content) in enumerate(zip(op.outputs, contents, strict=False)):
            parts = tuple(copy.outputs[index] for copy in copies)
            origin = output if is_made or _is_made_of(content, inputs) else None
            self.values[output.name] = ShardedValue(parts, placement, content, origin)

    def _before_write(self, op: tf.Operation, placement: Placement, number: int) -> list[tf.Operation]:
        """Returns the ops that a write must wait for if the write does not depend on a gradient, as in weight decay.

        Such a write waits for the aggregate of the variable's own gradient. The aggregate exists only after all ranks
        have read the rows that they use in this step.
        """
        if not is_write(op) or placement.variable in self.behind[op]:
            return []
        own = (value for value in self.aggregates.values() if value.placement.variable == placement.variable)
        return [value.parts[number].op for value in own]

    def _part_inputs(
        self,
        op: tf.Operation,
        inputs: list[Value],
        placement: Placement,
        number: int,
        contents: Sequence[Content],
        given: dict[int, tf.Tensor],
    ) -> list[tf.Tensor]:
        """Returns the inputs of the copy for shard `number`."""
        found = given
        if placement.is_cut and op.type.startswith(BY_IDS):
            found = inputs_by_ids(self, op, inputs, placement, number)
        if op.type == "UnsortedSegmentSum" and FULL_ROWS in contents:
            shard = placement.shards[number]
            with tf.device(shard.device):
                found = {NUM_SEGMENTS: tf.constant(shard.rows, op.inputs[NUM_SEGMENTS].dtype)}
        return [
            found[at] if at in found else self._part(op, tensor, inputs[at], placement, number)
            for at, tensor in enumerate(op.inputs)
        ]

    def _part(self, op: tf.Operation, tensor: tf.Tensor, value: Value, placement: Placement, number: int) -> tf.Tensor:
        """Returns the tensor that the copy for shard `number` reads instead of `tensor`. If the variable has several
        shards, `inputs_by_ids` handles the ids and rows of an update by ids instead."""
        if tensor.op.name in self.rewrite.placements:
            return self.rewrite.placements[tensor.op.name].shards[number].handle
        if isinstance(value, ShardedValue):
            if value.placement.layout == placement.layout:
                return value.parts[number]
            value = self.whole(value)
        if value.shape.rank == 0 or not is_write(op):
            return value
        rows = value if op.type.startswith(BY_IDS) else placement.shards[number].take(value)
        return self.sent(rows, placement)

    def sent(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """Returns `tensor` itself, and counts it as sent if it is sent to a server."""
        if placement.is_on_servers:
            self.rewrite.sent.append(Sent(tensor, 1, placement.variable))
        return tensor

    def _look_up(self, op: tf.Operation, inputs: list[Value], placement: Placement) -> None:
        """Looks up rows of a placed variable. A gradient's own ids are looked up on each shard, and other ids through
        the worker."""
        ids = inputs[1]
        if isinstance(ids, ShardedValue) and isinstance(ids.content, Ids) and ids.is_ids_in(placement):
            self._copy(op, inputs, placement, contents=[Rows(ids.content.of)])
            return
        self._replace(op.outputs[0], self._looked_up(op, ids, placement))

    def _looked_up(self, op: tf.Operation, ids: Value, placement: Placement) -> tf.Tensor:
        """Looks up rows of a placed variable on the worker. Sharded ids are joined first."""
        all_ids = self.whole(ids) if isinstance(ids, ShardedValue) else ids
        return placement.look_up(self, op, all_ids)

    def _replace(self, output: tf.Tensor, value: tf.Tensor) -> None:
        """Makes the region read `value` instead of the output of an op."""
        self.values[output.name] = value
        edit.reconnect(output, value, where=(self.rewrite.region | self.observers).__contains__)

    def _pass_on(self, op: tf.Operation, inputs: list[Value]) -> None:
        """Replaces each output with the input at the same index. The inputs need not be joined."""
        self.copies[op] = []
        for output, value in zip(op.outputs, inputs, strict=True):
            if isinstance(value, ShardedValue):
                self.values[output.name] = value
                self.copies[op] += [part.op for part in value.parts]
            else:
                self._replace(output, value)
                self.copies[op].append(value.op)

    def _sum_partially(self, op: tf.Operation, inputs: list[Value], placement: Placement) -> None:
        self._copy(op, inputs, placement, contents=[PARTIAL_SUM])
        parts = [copy.outputs[0] for copy in self.copies[op]]
        if op.type in ANSWERS:
            self._replace(op.outputs[0], self._answer(op, parts, placement))
        else:
            self._replace(op.outputs[0], placement.total(self, op, parts))

    def _answer(self, op: tf.Operation, parts: list[tf.Tensor], placement: Placement) -> tf.Tensor:
        """Combines the Boolean results of all shards by counting those that decide the answer: true for Any, false for
        All."""
        decides = op.type == "Any"
        counts = []
        for shard, part in zip(placement.shards, parts, strict=True):
            with tf.device(shard.device):
                counts.append(tf.cast(tf.equal(part, decides), tf.float32))
        said = placement.total(self, op, counts) > 0
        answer = said if decides else tf.logical_not(said)
        if op.outputs[0].name in self.rewrite.stands_for:
            self.rewrite.stands_for[op.outputs[0].name] = answer
        return answer

    def _divide(self, op: tf.Operation, inputs: list[Value], how: Divides) -> None:
        """Copies the op to each shard. The last output is the shape of the whole tensor."""
        rows, shape = inputs[how.division.rows], inputs[how.division.shape]
        assert isinstance(rows, ShardedValue) and isinstance(shape, tf.Tensor)
        given = [own_inputs(how.division, inputs, number) for number in range(len(rows.placement.shards))]
        self._copy(op, inputs, rows.placement, contents=how.contents, is_made=True, given=given)
        self._replace(op.outputs[-1], shape)

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
        """Returns the value as one tensor on the worker."""
        if value not in self.joined:
            is_made = value.origin is not None
            self.joined[value] = self._made_whole(value.origin) if is_made else value.placement.join(self, value)
        return self.joined[value]

    def _made_whole(self, origin: tf.Tensor) -> tf.Tensor:
        """Returns a whole list of rows that the model itself makes. To compute the list, the model's own op runs on
        whole inputs."""
        op = origin.op
        inputs = [self.values.get(tensor.name, tensor) for tensor in op.inputs]
        owner = self._owner(op)
        if owner is None:
            self._keep(op, inputs)
            return origin
        assert op.type == "ResourceGather"
        return self._looked_up(op, inputs[1], owner)

    def by_ascending_id(self, rows: ShardedValue) -> tf.Tensor:
        """Returns the positions of the rows in ascending order of ids.

        The positions refer to the concatenated rows of rank 0, rank 1, … or of shard 0, shard 1, …
        """
        assert isinstance(rows.content, OfList)
        wanted = Ids(rows.content.of)
        ids = next(each for each in self.values.values() if isinstance(each, ShardedValue) and each.content == wanted)
        if ids not in self.orders:
            self.orders[ids] = tf.argsort(ids.placement.all_ids(self.rewrite, ids.parts, name="order"))
        return self.orders[ids]

    def cross(self, tensor: tf.Tensor, variable: str, name: str) -> tf.Tensor:
        """Sends a tensor from servers to the worker. Ranks that do not take the tensor from the servers receive it from
        the chief instead."""
        with tf.name_scope(f"from_servers/{name}/"):
            crossing = tf.identity(tensor)
        self.crossings[crossing.op] = variable
        self.rewrite.sent.append(Sent(crossing, 1, variable))
        return crossing

    def controls_of(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns the control inputs of an op that stays on the worker. A control input that was copied is replaced by
        all its copies."""
        return self._controls(op, 0, 0)

    def _controls(self, op: tf.Operation, number: int, shards: int) -> list[tf.Operation]:
        """Returns the current control inputs of `op`. A control input that was copied is replaced by all its copies, or
        only by the copy for the same shard."""
        controls: list[tf.Operation] = []
        for control in op.control_inputs:
            copies = self.copies.get(control, [control])
            same = len(copies) == shards and control in self.copies
            controls += [copies[number]] if same and self._same_variable(op, control) else copies
        return controls

    def _same_variable(self, op: tf.Operation, control: tf.Operation) -> bool:
        return self._placed_handle(op) is not None and self._placed_handle(op) == self._placed_handle(control)


def _is_made_of(content: Content, inputs: Sequence[Value]) -> bool:
    """Returns whether an output is derived only from row lists that the model itself creates.

    An output with all rows is excluded if it also depends on a read of the variable, because the variable's rows have
    their own order.
    """
    sharded = [value for value in inputs if isinstance(value, ShardedValue)]
    if isinstance(content, OfList):
        return any(value.origin is not None for value in sharded if isinstance(value.content, OfList))
    return bool(sharded) and all(value.origin is not None for value in sharded)
