"""Proves, from the data flow of an optimizer's formula, that rows are independent and that untouched rows stay.

Each tensor of the graph gets a `Flow`: whether it has a row for each row of the gradient, and what is known of
a row whose gradient is zero. A tensor from outside, such as the count of updates or the learning rate, can have any
finite value. Both sides of a condition count. An op that no rule describes proves nothing, so such a formula updates
all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from parallax_runner.graph import edit
from parallax_runner.graph.traced.row_formula import RowFormula


class Known(StrEnum):
    """What is known of each number of a tensor, in a row whose gradient is zero. False counts as zero."""

    ZERO = "zero"
    ONE = "one"
    NOTHING = "nothing"


# A number n says: equal to the old rows of the formula's input `before[n]`.
AtZero: TypeAlias = Known | int


@dataclass(frozen=True)
class Flow:
    """`by_row` is true if row i of the tensor depends on row i of the formula's inputs, and false if the tensor depends
    on no row. `at_zero` holds in each row whose gradient is zero."""

    by_row: bool
    at_zero: AtZero


class _NotProvenError(Exception):
    """An op has no rule, or mixes rows."""


# Ops that return their first input, and ops that return zero for zero.
_SAME = frozenset({"EnsureShape", "Identity", "PreventGradient", "Snapshot", "StopGradient"})
_KEEP_ZERO = frozenset(
    {
        *("Abs", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Elu", "Erf", "Expm1", "Floor", "Log1p", "Neg", "Relu"),
        *("Relu6", "Rint", "Round", "Selu", "Sign", "Sin", "Sinh", "Softsign", "Sqrt", "Square", "Tan", "Tanh"),
    }
)
# Other ops that compute each number from the numbers at the same place.
_BY_NUMBER = frozenset(
    {
        *("Acos", "Acosh", "Atan2", "ClipByValue", "Cos", "Cosh", "Equal", "Erfc", "Exp", "FloorDiv", "FloorMod"),
        *("GreaterEqual", "Inv", "IsFinite", "IsInf", "IsNan", "LessEqual", "Log", "LogicalNot", "LogicalOr", "Mod"),
        *("Reciprocal", "Rsqrt", "Sigmoid", "Softplus", "TruncateDiv", "TruncateMod", "Xlogy"),
    }
)
# Ops that compute a number of a row from several numbers of the same row, if their axes leave the rows alone.
_REDUCTIONS = frozenset({"All", "Any", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"})


def keeps_untouched_rows(formula: RowFormula) -> bool:
    """Returns whether rows are independent, and each row whose gradient is zero keeps its old values."""
    flows = _flows_after(formula)
    return flows is not None and all(flow == Flow(True, place) for place, flow in enumerate(flows))


def works_by_row(formula: RowFormula) -> bool:
    """Returns whether the formula computes each row from this row alone, and writes nothing else."""
    flows = _flows_after(formula)
    return flows is not None and all(flow.by_row for flow in flows)


def values_from_outside(formula: RowFormula) -> list[Any]:
    """Returns the tensors that the rows after the update depend on and that no op of the graph computes."""
    inputs = {tensor.name for tensor in (formula.gradient, *formula.before)}
    ops = edit.in_order(edit.ancestors([one.op for one in formula.after], control=False))
    found = [op.outputs[0] for op in ops if op.type in {"Placeholder", "ReadVariableOp"}]
    return [one for one in found if one.name not in inputs and one.dtype != tf.resource]


def variable_read(formula: RowFormula, tensor: Any) -> int | None:
    """Returns the handle id of the variable that a tensor is the value of, or None for other tensors."""
    if tensor.op.type != "ReadVariableOp":
        return None
    handles = {inner.name: outer._id for outer, inner in formula.graph.captures if hasattr(outer, "_id")}
    return handles.get(tensor.op.inputs[0].name)


def _flows_after(formula: RowFormula) -> list[Flow] | None:
    """Returns the flows of the rows after an update, or None if they cannot be known or the formula writes."""
    if not all(_is_harmless(formula, op) for op in formula.graph.get_operations()):
        return None
    try:
        flows = _flows_of_tensors(formula)
    except _NotProvenError:
        return None
    if not _keeps_shapes(formula):
        return None
    return [flows[one.name] for one in formula.after]


def _flows_of_tensors(formula: RowFormula) -> dict[str, Flow]:
    """Returns the flow of each tensor from which the rows after an update are computed, by the tensor's name. Raises
    _NotProvenError if a flow cannot be known."""
    flows = {one.name: Flow(True, place) for place, one in enumerate(formula.before)}
    flows[formula.gradient.name] = Flow(True, Known.ZERO)
    for op in edit.in_order(edit.ancestors([one.op for one in formula.after], control=False)):
        for output in op.outputs:
            if output.name not in flows:
                flows[output.name] = _flow(op, [flows[one.name] for one in op.inputs])
    return flows


def _keeps_shapes(formula: RowFormula) -> bool:
    """Returns whether each row has the same shape before and after an update."""
    for before, after in zip(formula.before, formula.after, strict=True):
        if before.shape[1:].as_list() != after.shape[1:].as_list():
            return False
    return True


def _is_harmless(formula: RowFormula, op: Any) -> bool:
    """Returns whether the op has no effect, and does not read whole variables whose rows the formula updates."""
    if op.type == "ReadVariableOp":
        handle = variable_read(formula, op.outputs[0])
        return handle is not None and handle not in formula.handle_ids
    return not op.op_def.is_stateful


def _flow(op: Any, inputs: Sequence[Flow]) -> Flow:
    known = [flow.at_zero for flow in inputs]
    if not any(flow.by_row for flow in inputs):
        return Flow(False, _same_everywhere(op, known))
    shape = op.outputs[0].shape
    if not shape.rank or shape[0] is not None:  # the op mixes rows, or expects a certain number of rows
        raise _NotProvenError(op.type)
    if op.type in _REDUCTIONS:
        return Flow(True, _reduced(op, known))
    if op.type == "ExpandDims":
        return Flow(True, _widened(op, known))
    at_zero = _at_zero(op, known)
    if at_zero is None or not _rows_stay_in_place(op, inputs):
        raise _NotProvenError(op.type)
    return Flow(True, at_zero)


def _same_everywhere(op: Any, known: Sequence[AtZero]) -> AtZero:
    if op.type != "Const":
        return _at_zero(op, known) or Known.NOTHING
    value = tf.get_static_value(op.outputs[0])
    if value.dtype.kind not in "fiub" and op.outputs[0].dtype not in {tf.bfloat16, tf.float16}:
        return Known.NOTHING
    if (value == 0).all():
        return Known.ZERO
    return Known.ONE if (value == 1).all() else Known.NOTHING


def _rows_stay_in_place(op: Any, inputs: Sequence[Flow]) -> bool:
    """Returns whether broadcasting the op's inputs leaves each row at its place."""
    ranks = {one.shape.rank for one, flow in zip(op.inputs, inputs, strict=True) if flow.by_row}
    if len(ranks) != 1 or None in ranks:
        return False
    rank = ranks.pop()
    return all(flow.by_row or _fits_each_row(one.shape, rank) for one, flow in zip(op.inputs, inputs, strict=True))


def _fits_each_row(shape: Any, rank: int) -> bool:
    """Returns whether a tensor of this shape is used in the same way for each row of a tensor of rank `rank`."""
    if shape.rank is None or shape.rank > rank:
        return False
    return shape.rank < rank or shape[0] == 1


def _axes(op: Any) -> list[int]:
    """Returns the axes of a reduction or an expansion. Raises if they are unknown."""
    axes, rank = tf.get_static_value(op.inputs[1]), op.inputs[0].shape.rank
    if axes is None or rank is None:
        raise _NotProvenError(op.type)
    after = rank + 1 if op.type == "ExpandDims" else rank
    return [int(axis) % after for axis in np.ravel(axes)]


def _reduced(op: Any, known: Sequence[AtZero]) -> AtZero:
    if 0 in _axes(op):
        raise _NotProvenError(op.type)
    return Known.ZERO if known[0] is Known.ZERO else Known.NOTHING


def _widened(op: Any, known: Sequence[AtZero]) -> AtZero:
    if 0 in _axes(op):
        raise _NotProvenError(op.type)
    return known[0] if isinstance(known[0], Known) else Known.NOTHING


def _at_zero(op: Any, known: Sequence[AtZero]) -> AtZero | None:
    """Returns what is known of the result of an op that computes number by number, or None for another op."""
    if op.type in _SAME:
        return known[0]
    if op.type in _KEEP_ZERO:
        return Known.ZERO if known[0] is Known.ZERO else Known.NOTHING
    if op.type in _BY_NUMBER:
        return Known.NOTHING
    rule = _RULES.get(op.type)
    return None if rule is None else rule(op, known)


def _sum(_: Any, known: Sequence[AtZero]) -> AtZero:
    terms = [one for one in known if one is not Known.ZERO]
    if len(terms) > 1:
        return Known.NOTHING
    return terms[0] if terms else Known.ZERO


def _difference(_: Any, known: Sequence[AtZero]) -> AtZero:
    return known[0] if known[1] is Known.ZERO else Known.NOTHING


def _product(_: Any, known: Sequence[AtZero]) -> AtZero:
    if Known.ZERO in known:
        return Known.ZERO
    factors = [one for one in known if one is not Known.ONE]
    if len(factors) > 1:
        return Known.NOTHING
    return factors[0] if factors else Known.ONE


def _quotient(_: Any, known: Sequence[AtZero]) -> AtZero:
    if known[0] is Known.ZERO:
        return Known.ZERO
    return known[0] if known[1] is Known.ONE else Known.NOTHING


def _all_alike(_: Any, known: Sequence[AtZero]) -> AtZero:
    return known[0] if len(set(known)) == 1 else Known.NOTHING


def _all_zero(_: Any, known: Sequence[AtZero]) -> AtZero:
    return Known.ZERO if set(known) == {Known.ZERO} else Known.NOTHING


def _any_zero(_: Any, known: Sequence[AtZero]) -> AtZero:
    return Known.ZERO if Known.ZERO in known else Known.NOTHING


def _chosen(_: Any, known: Sequence[AtZero]) -> AtZero:
    condition, taken, other = known
    if condition is Known.ZERO:
        return other
    if condition is Known.ONE or taken == other:
        return taken
    return Known.NOTHING


def _bounded(op: Any, known: Sequence[AtZero]) -> AtZero:
    """Returns zero for zero that is bounded by a constant on the other side of zero."""
    if known[0] == known[1]:
        return known[0]
    bounds = [tf.get_static_value(one) for one, flow in zip(op.inputs, known, strict=True) if flow is not Known.ZERO]
    if len(bounds) > 1 or bounds[0] is None:
        return Known.NOTHING
    beyond = bounds[0] >= 0 if op.type == "Minimum" else bounds[0] <= 0
    return Known.ZERO if beyond.all() else Known.NOTHING


def _power(op: Any, known: Sequence[AtZero]) -> AtZero:
    exponent = tf.get_static_value(op.inputs[1])
    is_kept = known[0] is Known.ZERO and exponent is not None and (exponent > 0).all()
    return Known.ZERO if is_kept else Known.NOTHING


def _cast(op: Any, known: Sequence[AtZero]) -> AtZero:
    is_same = op.inputs[0].dtype == op.outputs[0].dtype
    return known[0] if is_same or isinstance(known[0], Known) else Known.NOTHING


_RULES: dict[str, Callable[[Any, Sequence[AtZero]], AtZero]] = {
    "Add": _sum,
    "AddN": _sum,
    "AddV2": _sum,
    "Cast": _cast,
    "Div": _quotient,
    "DivNoNan": _quotient,
    "Greater": _all_zero,
    "Less": _all_zero,
    "LogicalAnd": _any_zero,
    "Maximum": _bounded,
    "Minimum": _bounded,
    "Mul": _product,
    "MulNoNan": _product,
    "NotEqual": _all_zero,
    "OnesLike": lambda *_: Known.ONE,
    "Pow": _power,
    "RealDiv": _quotient,
    "SelectV2": _chosen,
    "SquaredDifference": _all_zero,
    "Sub": _difference,
    "Xdivy": _quotient,
    "ZerosLike": lambda *_: Known.ZERO,
}
