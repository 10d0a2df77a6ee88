"""What an op of the update region gives of each shard, if it can run beside the shards; planning and rewriting ask.

An op that works row by row runs once a shard, and so does one that makes a list of rows of gradients' lists
(row_lists.py), makes a list of rows dense, or looks rows up by a list's ids. Of a sum over all rows each shard has a
part. Any other op needs the rows brought together.
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
# What these give for a row needs that row alone, if they go along other dimensions.
WITHIN_ROWS = frozenset({"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"})
# Of what these ask of all rows each shard has a part of the answer.
ANSWERS = frozenset({"All", "Any"})


@dataclass(frozen=True)
class Operand:
    """An input of an op: `content` of each shard of `layout`, or, without them, the same for all shards. `rows` is how
    many rows the variable has that is laid out so."""

    shape: tf.TensorShape
    content: Content | None = None
    layout: Hashable = None
    rows: int = 0

    def matches(self, other: Operand) -> bool:
        """Whether the two can be combined part by part."""
        return (self.layout, self.content, self.shape.rank) == (other.layout, other.content, other.shape.rank)


@dataclass(frozen=True)
class OnShards:
    """The op runs once a shard; `contents` is what its outputs are. `is_made`: they are a list that the model makes, or
    rows that are made of one."""

    contents: tuple[Content, ...]
    is_made: bool = False


@dataclass(frozen=True)
class InParts:
    """The op runs once a shard, and gives a part of one number."""


@dataclass(frozen=True)
class Divides:
    """The op runs once a shard, and its own rows decide for each shard; `contents` is what its first outputs are. The
    last output is the shape of the whole."""

    division: SliceDivision
    contents: tuple[Content, ...]


@dataclass(frozen=True)
class PassedOn:
    """Each output is the input at the same place."""


@dataclass(frozen=True)
class Known:
    """The output is known before the step."""

    value: tuple[int, ...] | int


Treatment: TypeAlias = OnShards | InParts | Divides | PassedOn | Known | None


def treatment(op: tf.Operation, operands: Sequence[Operand], division: SliceDivision | None = None) -> Treatment:
    """How an op of the update region that is no read or write of a variable runs; None: on what is brought together.
    `division` is what the op is as a division of slices, in the graph as the model made it."""
    sharded = [operand for operand in operands if operand.content is not None]
    if not sharded:
        return None
    if op.type == "IdentityN":
        return PassedOn()
    if _works_by_row(op, operands, sharded):
        return OnShards((sharded[0].content or FULL_ROWS,))
    if _densifies(op, operands):
        return OnShards((FULL_ROWS,), is_made=True)
    if (looked_up := _looks_up(op, operands)) is not None:
        return OnShards((looked_up,))
    if len({operand.layout for operand in sharded}) == 1:
        made = made_contents(op, [operand.content for operand in operands])
        if made is not None:
            return OnShards(tuple(made), is_made=True)
    if len(sharded) == 1 and isinstance(sharded[0].content, FullRows | Rows) and gives_parts(op):
        return InParts()
    if division is not None and (divides := _divides(op, operands, division)) is not None:
        return divides
    return _known(op, operands[0])


def _works_by_row(op: tf.Operation, operands: Sequence[Operand], sharded: Sequence[Operand]) -> bool:
    first = sharded[0]
    if not isinstance(first.content, FullRows | Rows | Ids) or not all(each.matches(first) for each in sharded):
        return False
    if isinstance(first.content, Ids):
        return op.type in ON_IDS
    if op.type in WITHIN_ROWS:
        return operands[0] is first and _goes_within_rows(op)
    if op.type == "Select" and operands[0].content is None and operands[0].shape.rank != 0:
        return False  # a vector would choose among rows
    # A plain operand must mean the same for every row: it may only have the dimensions behind the first, or be one
    # number in as many dimensions.
    rank = first.shape.rank
    return op.type in ELEMENTWISE and all(
        plain.rank == 0
        or (None not in (plain.rank, rank) and (plain.rank < rank or (plain.rank == rank and is_number(plain))))
        for plain in (operand.shape for operand in operands if operand.content is None)
    )


def _goes_within_rows(op: tf.Operation) -> bool:
    axes, rank = known_numbers(op.inputs[1]), op.inputs[0].shape.rank
    return axes is not None and rank is not None and all(axis % rank for axis in axes)


def _densifies(op: tf.Operation, operands: Sequence[Operand]) -> bool:
    """Whether the op makes rows of a list, by the list's ids, to rows of the whole variable."""
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
    """The rows of a list, where the op takes them from all rows by the list's ids."""
    if op.type != "GatherV2" or op.get_attr("batch_dims") != 0 or known_number(op.inputs[2]) != 0:
        return None
    params, ids, _ = operands
    if isinstance(params.content, FullRows) and isinstance(ids.content, Ids) and params.layout == ids.layout:
        return Rows(ids.content.of)
    return None


def gives_parts(op: tf.Operation) -> bool:
    """Whether the op makes one number of all rows, and can do so part by part."""
    return sums_to_number(op) or (op.type in ANSWERS and op.outputs[0].shape.rank == 0)


def _divides(op: tf.Operation, operands: Sequence[Operand], division: SliceDivision) -> Divides | None:
    rows, ids = operands[division.rows], operands[division.ids]
    whole = [operands[division.is_zero], operands[division.divisor]]
    if (
        not isinstance(rows.content, Rows)
        or not isinstance(rows.content.of, GradientList)  # without repeated ids, which the op does not mean
        or ids.content != Ids(rows.content.of)
        or not all(isinstance(operand.content, FullRows) for operand in whole)
        or len({operand.layout for operand in (rows, ids, *whole)}) != 1
        or (known_numbers(op.inputs[division.shape]) or [0])[0] != rows.rows
    ):
        return None
    divided = DividedList(rows.content.of, op.name)
    return Divides(division, (Rows(divided), Ids(divided)))


def _known(op: tf.Operation, operand: Operand) -> Known | None:
    """What is known of the rows of the whole variable without them."""
    rank = operand.shape.rank
    if rank is None or not isinstance(operand.content, FullRows | Rows):
        return None
    if op.type == "Rank":
        return Known(rank)
    row_shape = operand.shape[1:]
    if op.type != "Shape" or not isinstance(operand.content, FullRows) or not row_shape.is_fully_defined():
        return None
    return Known((operand.rows, *row_shape.as_list()))
