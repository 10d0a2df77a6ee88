"""Sets the rows of a shard to their initial values, block by block.

Each process that has rows of a variable makes all blocks, one after the other, and keeps its own rows of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.initial_rows import (
    Computed,
    Drawn,
    Formula,
    InitialRows,
    MadeWhole,
    Shared,
    initial_rows,
    is_large,
)
from parallax_runner.rewrite.initial_values.draws import drawn_rows
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.rewrite_state import Initializers

BLOCK_BYTES = 4 << 20
# A draw of this many rows ends with a whole group of random numbers, whatever the length of a row.
WHOLE_GROUPS = 4


def assign_initial(initializers: Initializers, shard: Shard, value: tf.Tensor, *, is_cut: bool) -> tf.Operation:
    """Returns an op that sets the shard to its rows of `value`, the initial value of the whole variable.

    A large value is made in blocks on the shard's device. If all its rows are equal, only the shard's rows are made.
    Other values are made whole, on the current device. Unless `is_cut`, the shard has all rows, and `value` can have
    rank 0.
    """
    initial = initial_rows(value) if is_large(value) else None
    if initial is None or isinstance(initial, MadeWhole):
        rows = shard.take(value) if is_cut else value
        with tf.device(shard.device):
            return tf.raw_ops.AssignVariableOp(resource=shard.handle, value=rows)
    with tf.device(shard.device):
        return (
            _assign_equal_rows(shard, initial) if initial.are_equal else _assign_in_blocks(initializers, shard, initial)
        )


def rows_at_once(initial: InitialRows) -> int:
    """Returns the number of rows of a block. Each value that is needed for a block has at most `BLOCK_BYTES`, or one
    row."""
    row_bytes = math.prod(initial.shape[1:]) * initial.largest_itemsize
    fitting = max(1, BLOCK_BYTES // max(1, row_bytes))
    return fitting if fitting < WHOLE_GROUPS else fitting - fitting % WHOLE_GROUPS


def _assign_equal_rows(shard: Shard, initial: InitialRows) -> tf.Operation:
    row = _Computation().of(initial.formula)
    rows = tf.broadcast_to(row, _own_shape(shard, initial))
    return tf.raw_ops.AssignVariableOp(resource=shard.handle, value=rows)


def _own_shape(shard: Shard, initial: InitialRows) -> list[int]:
    return [shard.rows, *initial.shape[1:]]


def _assign_in_blocks(initializers: Initializers, shard: Shard, initial: InitialRows) -> tf.Operation:
    """Makes the blocks of a shard after those of the shard before on the same device, so that only one block exists at
    a time."""
    before = initializers.loops.get(shard.device)
    with tf.control_dependencies([] if before is None else [before]):
        empty = tf.zeros(_own_shape(shard, initial), initial.dtype)
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=shard.handle, value=empty)]):
        loop = _loop(shard, initial)
    initializers.loops[shard.device] = loop
    return loop


def _loop(shard: Shard, initial: InitialRows) -> tf.Operation:
    rows, at_once = initial.shape[0], rows_at_once(initial)

    def assign_block(first_row: tf.Tensor) -> list[tf.Tensor]:
        block = Block(first_row, tf.minimum(tf.constant(at_once, tf.int64), rows - first_row), at_once)
        with tf.device(shard.device):
            assigned = _assign_block(shard, block, _Computation(block).of(initial.formula))
        with tf.control_dependencies([assigned]):
            return [first_row + at_once]

    (ended,) = tf.while_loop(
        lambda first_row: first_row < rows,
        assign_block,
        [tf.zeros([], tf.int64)],
        parallel_iterations=1,
        back_prop=False,
        name="blocks",
        return_same_structure=True,
    )
    return ended.op


@dataclass(frozen=True)
class Block:
    """The rows [first_row, first_row + rows) of a value (int64 scalars). All blocks but the last have `rows_at_once`
    rows."""

    first_row: tf.Tensor
    rows: tf.Tensor
    rows_at_once: int


@dataclass
class _Computation:
    """Computes formulas for a block. Without a block, nothing may be drawn."""

    block: Block | None = None
    _computed: dict[Formula, tf.Tensor] = field(default_factory=dict)

    def of(self, formula: Formula) -> tf.Tensor:
        """Returns the rows of a formula. If all rows are equal, the result has no row dimension, or one of size 1."""
        if formula not in self._computed:
            self._computed[formula] = self._compute(formula)
        return self._computed[formula]

    def _compute(self, formula: Formula) -> tf.Tensor:
        if isinstance(formula, Shared):
            return tf.constant(formula.number) if formula.tensor is None else formula.tensor
        if isinstance(formula, Computed):
            return _again(formula.op, [self.of(each) for each in formula.inputs])
        assert self.block is not None
        assert isinstance(formula, Drawn)
        return drawn_rows(formula.op, self.block.first_row, self.block.rows, rows_at_once=self.block.rows_at_once)


def _again(op: tf.Operation, inputs: list[tf.Tensor]) -> tf.Tensor:
    """Adds a copy of an op, with other inputs, to the graph of the loop."""
    attrs = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
    dtypes = [output.dtype.base_dtype for output in op.outputs]
    copy = tf.get_default_graph().create_op(op.type, inputs, dtypes, name=op.name.rpartition("/")[-1], attrs=attrs)
    return copy.outputs[0]


def _assign_block(shard: Shard, block: Block, values: tf.Tensor) -> tf.Operation:
    """Assigns the shard's rows of a block with these values."""
    between = block.first_row - shard.offset  # rows from the shard's first row to the block's first row
    own = values[(-between) % shard.step :: shard.step]
    place = tf.maximum(tf.zeros([], tf.int64), (between + shard.step - 1) // shard.step)
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=shard.handle,
        begin=[place],
        end=[place + tf.shape(own, out_type=tf.int64)[0]],
        strides=tf.ones([1], tf.int64),
        value=own,
    )
