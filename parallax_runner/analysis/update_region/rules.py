"""Decides whether an op in the update region can run on shards, and determines the contents of its outputs.

Planning and the rewrite use the same rules. An op runs once per shard if it works row by row, derives a list of rows
from the lists of gradients (row_lists.py), converts a list of rows to dense rows, or looks up rows by the ids in a
list. For a reduction of all rows to a scalar, each shard computes a partial result. Any other op needs all rows in one
place.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import FULL_ROWS, Content, FullRows, Ids, Rows
from parallax_runner.analysis.update_region.elementwise import ELEMENTWISE
from parallax_runner.analysis.update_region.row_list import DividedList, GradientList
from parallax_runner.analysis.update_region.row_lists import made_contents
from parallax_runner.analysis.update_region.slice_division import SliceDivision
from parallax_runner.graph.known_numbers import known_number, known_numbers
from parallax_runner.graph.observers import is_number, sums_to_number

ON_IDS = frozenset({"Cast", "Identity"})
# For each of these ops, the result for a row depends only on that row, provided that the op does not reduce the first
# dimension.
WITHIN_ROWS = frozenset({"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"})
# Reductions over all rows. Each shard computes a partial result.
ANSWERS = frozenset({"All", "Any"})


@dataclass(frozen=True)
class Operand:
    """An input of an op.

    On each shard of `layout`, the input has this `content`. An input without content and layout is the same for all
    shards. `rows` is the number of rows in the variable with this layout.
    """

    shape: tf.TensorShape
    content: Content | None = None
    layout: Hashable = None
    rows: int = 0

    def matches(self, other: Operand) -> bool:
        """Returns whether the parts of two operands can be combined."""
        return (self.layout, self.content, self.shape.rank) == (other.layout, other.content, other.shape.rank)


@dataclass(frozen=True)
class OnShards:
    """An op that runs once per shard.

    `contents` describes the op's outputs. `is_made` is set if the outputs are a list that the model derives, or rows
    derived from such a list.
    """

    contents: tuple[Content, ...]
    is_made: bool = False


@dataclass(frozen=True)
class InParts:
    """A reduction that runs once per shard. Each run returns a partial result."""


@dataclass(frozen=True)
class Divides:
    """A division that runs once per shard. The shard's own rows determine which branch runs.

    `contents` describes the first outputs. The last output is the shape of the whole tensor.
    """

    division: SliceDivision
    contents: tuple[Content, ...]


@dataclass(frozen=True)
class PassedOn:
    """An op whose outputs equal its inputs at the same positions."""


@dataclass(frozen=True)
class Known:
    """An op whose output is known before the step runs."""

    value: tuple[int, ...] | int


Treatment: TypeAlias = OnShards | InParts | Divides | PassedOn | Known | None


def treatment(op: tf.Operation, operands: Sequence[Operand], division: SliceDivision | None = None) -> Treatment:
    """Returns how an op in the update region runs, unless the op reads or writes a variable.

    None means that the op runs in one place, on all rows.

    `division` is the result of `slice_division` for the same op in the model's original graph.
    """
    sharded = [operand for operand in operands if operand.content is not None]
    if not sharded:
        return None
    if op.type == "IdentityN":
        return PassedOn()
    on_shards = _on_shards(op, operands, sharded)
    if on_shards is not None:
        return on_shards
    if _reduces_rows(op, sharded):
        return InParts()
    divides = None if division is None else _divides(op, operands, division)
    if divides is not None:
        return divides
    return _known(op, operands[0])


def _on_shards(op: tf.Operation, operands: Sequence[Operand], sharded: Sequence[Operand]) -> OnShards | None:
    if _works_by_row(op, operands, sharded):
        return OnShards((sharded[0].content or FULL_ROWS,))
    if _densifies(op, operands):
        return OnShards((FULL_ROWS,), is_made=True)
    looked_up = _looks_up(op, operands)
    if looked_up is not None:
        return OnShards((looked_up,))
    layouts = {operand.layout for operand in sharded}
    if len(layouts) > 1:
        return None
    made = made_contents(op, [operand.content for operand in operands])
    return None if made is None else OnShards(tuple(made), is_made=True)


def _works_by_row(op: tf.Operation, operands: Sequence[Operand], sharded: Sequence[Operand]) -> bool:
    first = sharded[0]
    if not all(each.matches(first) for each in sharded):
        return False
    if isinstance(first.content, Ids):
        return op.type in ON_IDS
    if not isinstance(first.content, FullRows | Rows):
        return False
    if op.type in WITHIN_ROWS:
        return operands[0] is first and _goes_within_rows(op)
    if op.type not in ELEMENTWISE or _selects_rows(op, operands):
        return False
    return _treats_rows_alike(operands, first.shape.rank)


def _selects_rows(op: tf.Operation, operands: Sequence[Operand]) -> bool:
    """Returns whether the op has a condition that is a vector, because such a condition selects whole rows."""
    condition = operands[0]
    return op.type == "Select" and condition.content is None and condition.shape.rank != 0


def _treats_rows_alike(operands: Sequence[Operand], rank: int | None) -> bool:
    """Returns whether each operand without content has the same meaning for every row of an operand with `rank`
    dimensions."""
    plain = [operand.shape for operand in operands if operand.content is None]
    return all(_is_alike_for_rows(shape, rank) for shape in plain)


def _is_alike_for_rows(shape: tf.TensorShape, rank: int | None) -> bool:
    """Returns whether the tensor's dimensions correspond only to dimensions after the first, or the tensor is a single
    element with the same rank."""
    if shape.rank == 0:
        return True
    if shape.rank is None or rank is None:
        return False
    if shape.rank < rank:
        return True
    return shape.rank == rank and is_number(shape)


def _goes_within_rows(op: tf.Operation) -> bool:
    axes, rank = known_numbers(op.inputs[1]), op.inputs[0].shape.rank
    return axes is not None and rank is not None and all(axis % rank for axis in axes)


def _densifies(op: tf.Operation, operands: Sequence[Operand]) -> bool:
    """Returns whether the op converts a list of rows to rows of the whole variable, using the ids of the list."""
    if op.type != "UnsortedSegmentSum":
        return False
    rows, ids, _ = operands
    return (
        isinstance(rows.content, Rows)
        and ids.content == Ids(rows.content.of)
        and ids.layout == rows.layout
        and known_number(op.inputs[2]) == rows.rows
    )


def _looks_up(op: tf.Operation, operands: Sequence[Operand]) -> Rows | None:
    """Returns the content of the output if the op looks up the ids of a list in all rows of a variable, otherwise
    None."""
    if op.type != "GatherV2" or op.get_attr("batch_dims") != 0 or known_number(op.inputs[2]) != 0:
        return None
    params, ids, _ = operands
    if isinstance(params.content, FullRows) and isinstance(ids.content, Ids) and params.layout == ids.layout:
        return Rows(ids.content.of)
    return None


def _reduces_rows(op: tf.Operation, sharded: Sequence[Operand]) -> bool:
    """Returns whether the op reduces the rows of its only operand with content, and can reduce each part separately."""
    has_rows = isinstance(sharded[0].content, FullRows | Rows)
    return len(sharded) == 1 and has_rows and gives_parts(op)


def gives_parts(op: tf.Operation) -> bool:
    """Returns whether the op reduces all rows to a scalar, and can reduce each part separately."""
    return sums_to_number(op) or (op.type in ANSWERS and op.outputs[0].shape.rank == 0)


def _divides(op: tf.Operation, operands: Sequence[Operand], division: SliceDivision) -> Divides | None:
    rows, ids = operands[division.rows], operands[division.ids]
    whole = [operands[division.is_zero], operands[division.divisor]]
    if (
        not isinstance(rows.content, Rows)
        or not isinstance(rows.content.of, GradientList)  # the op needs distinct ids, and a gradient has them
        or ids.content != Ids(rows.content.of)
        or not all(isinstance(operand.content, FullRows) for operand in whole)
        or len({operand.layout for operand in (rows, ids, *whole)}) != 1
        or (known_numbers(op.inputs[division.shape]) or [0])[0] != rows.rows
    ):
        return None
    divided = DividedList(rows.content.of, op.name)
    return Divides(division, (Rows(divided), Ids(divided)))


def _known(op: tf.Operation, operand: Operand) -> Known | None:
    """Returns the op's result if it is known without reading the variable's rows, otherwise None."""
    rank = operand.shape.rank
    if rank is None or not isinstance(operand.content, FullRows | Rows):
        return None
    if op.type == "Rank":
        return Known(rank)
    row_shape = operand.shape[1:]
    if op.type != "Shape" or not isinstance(operand.content, FullRows) or not row_shape.is_fully_defined():
        return None
    return Known((operand.rows, *row_shape.as_list()))
