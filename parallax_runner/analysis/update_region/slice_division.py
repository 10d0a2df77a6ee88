"""Recognizes the ops that Keras uses to divide a sparse gradient's rows by a tensor that covers all rows of the
variable, such as Adagrad's accumulator.

Keras divides in a conditional. If no element of the divisor is zero or NaN, the rows are divided by the divisor's rows
with the same ids. Otherwise the result also contains every row in which the divisor has a zero or NaN. Both branches
can run separately on each shard, and the shard's own rows determine which branch runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph.branches import IF_TYPES, Branch, branches

# Ops that occur in the branch that adds rows.
UNION = frozenset(
    {
        *("Cast", "Const", "Equal", "ExpandDims", "Fill", "GatherV2", "Identity", "LogicalOr", "Pack", "RealDiv"),
        *("ScatterNd", "Shape", "Squeeze", "StatelessIf", "StridedSlice", "Where"),
    }
)


@dataclass(frozen=True)
class SliceDivision:
    """The positions of the branching op's inputs.

    After the condition, the inputs are: a boolean tensor that marks each zero or NaN in the divisor, the shape of the
    dense tensor, the ids of the rows, the rows, and the divisor. Their order varies. The outputs are rows, ids and the
    shape of the dense tensor.
    """

    is_zero: int
    shape: int
    ids: int
    rows: int
    divisor: int


def slice_division(op: tf.Operation) -> SliceDivision | None:
    """Returns the input positions of an op that divides in this way, or None for any other op."""
    if op.type not in IF_TYPES or len(op.outputs) != 3 or len(op.inputs) != 6:
        return None
    union, plain = branches(op)
    places = _places_in(plain)
    left = set(range(1, 6)) - set(places)
    if len(places) != 4 or len(left) != 1:
        return None
    (is_zero,) = left
    if not _asks(op.inputs[0], op.inputs[is_zero]):
        return None
    division = SliceDivision(is_zero, *places)
    return division if _has_rows_of_zeros(union, division) else None


def _places_in(plain: Branch) -> list[int]:
    """Returns the input positions of the shape, the ids, the rows and the divisor if the branch divides the rows by the
    divisor's rows with the same ids, and fewer positions for any other branch."""
    quotient, ids, shape = (_before_cast(plain, plain.result(number)) for number in range(3))
    if plain.type_of(quotient) != "RealDiv":
        return []
    rows, looked_up = plain.inputs(quotient)
    if plain.type_of(looked_up) != "GatherV2":
        return []
    divisor, by, *_ = plain.inputs(looked_up)
    if _before_cast(plain, by) != ids:
        return []
    found = [plain.arguments.get(each) for each in (shape, ids, rows, divisor)]
    return [each for each in found if each is not None]


def _asks(condition: tf.Tensor, of: tf.Tensor) -> bool:
    """Returns whether the condition tests whether any element of the tensor `of` is true."""
    return condition.op.type == "Any" and condition.shape.rank == 0 and condition.op.inputs[0] is of


def _has_rows_of_zeros(union: Branch, division: SliceDivision) -> bool:
    quotient, ids, shape = (_before_cast(union, union.result(number)) for number in range(3))
    if union.arguments.get(shape) != division.shape or union.type_of(quotient) != "RealDiv":
        return False
    _, looked_up = union.inputs(quotient)
    divisor, by, *_ = union.inputs(looked_up) or ["", ""]
    return (
        _before_cast(union, by) == ids
        and union.arguments.get(divisor) == division.divisor
        and _types_behind(union, ids)[:3] == ["Squeeze", "Where", "LogicalOr"]
        and {node.op for node in union.definition.node_def} <= UNION
    )


def _before_cast(branch: Branch, tensor: str) -> str:
    """Returns the input of the cast that produces the tensor, or the tensor itself if no cast does. Keras casts 32-bit
    ids to 64-bit ids because both branches must have the same types."""
    return branch.inputs(tensor)[0] if branch.type_of(tensor) == "Cast" else tensor


def _types_behind(branch: Branch, tensor: str) -> list[str]:
    """Returns the op types along the chain of first inputs that leads to a tensor.

    The list starts with the node that produces the tensor.
    """
    inputs = branch.inputs(tensor)
    return [branch.type_of(tensor), *(_types_behind(branch, inputs[0]) if inputs else [])]
