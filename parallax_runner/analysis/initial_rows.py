"""Finds out whether rows of a variable's initial value can be computed without the other rows.

Such a value is a random draw, a constant, or an elementwise function of such values. Another process can then make a
large initial value in blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import tensor_pb2

from parallax_runner.analysis.variable_info import WholeInitialValue
from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import Variable

# Up to this size, an initial value is made whole.
SMALL_BYTES = 1 << 20
# The largest value that all rows may share, and the largest value that it may be computed from.
SHARED_BYTES = 1 << 20
STREAM_DRAWS = frozenset({"RandomUniform", "RandomStandardNormal", "TruncatedNormal"})
STATELESS_DRAWS = frozenset({"StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"})
# Inputs of a stateless draw.
KEY, COUNTER, ALGORITHM = 1, 2, 3
PHILOX, CHOSEN_BY_DEVICE = 1, 3  # CPUs and GPUs choose Philox
# The results of these elementwise ops are exact, so they do not depend on how many elements are computed at once. In
# contrast, TensorFlow computes an Exp of the last elements of a tensor in another way than that of the others.
EXACT = frozenset(
    {
        *("Abs", "Add", "AddV2", "Cast", "Ceil", "Div", "Equal", "Floor", "Greater", "GreaterEqual", "Identity"),
        *("Less", "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "Neg"),
        *("NotEqual", "PreventGradient", "RealDiv", "Relu", "SelectV2", "Sign", "Sqrt", "Square"),
        *("SquaredDifference", "StopGradient", "Sub"),
    }
)
# TensorFlow optimizes these ops away. Sums and products are found behind them.
PASS_ON = frozenset({"Identity", "PreventGradient", "StopGradient"})
SUMS, PRODUCTS, QUOTIENTS = frozenset({"Add", "AddV2"}), frozenset({"Mul"}), frozenset({"Div", "RealDiv"})
CONTENTS = ("half_val", "float_val", "double_val", "int_val", "int64_val", "bool_val", "uint32_val", "uint64_val")


@dataclass(frozen=True, eq=False)
class Shared:
    """A value that all rows share: a small `tensor` without an entry for each row, or the only `number` of a
    constant."""

    tensor: tf.Tensor | None = None
    number: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Drawn:
    """Random numbers that `op` draws, in the order of the rows."""

    op: tf.Operation


@dataclass(frozen=True, eq=False)
class Computed:
    """The result of the elementwise op `op` for `inputs`."""

    op: tf.Operation
    inputs: tuple[Formula, ...]


Formula = Shared | Drawn | Computed


@dataclass(frozen=True, eq=False)
class InitialRows:
    """How each row of an initial value is computed. `largest_itemsize` is the size in bytes of an element of the widest
    value on the way."""

    formula: Formula
    shape: tuple[int, ...]
    dtype: tf.DType
    largest_itemsize: int

    @property
    def are_equal(self) -> bool:
        """Whether all rows are equal, because nothing is drawn for each row."""
        return not _draws(self.formula)


@dataclass(frozen=True)
class MadeWhole:
    """Why an initial value can only be computed as a whole: the op that prevents the computation of single rows."""

    op: str
    because: str

    def __str__(self) -> str:
        return f"«{self.op}» {self.because}"


class _NeedsAllRows(Exception):
    def __init__(self, op: tf.Operation, because: str) -> None:
        super().__init__(because)
        self.reason = MadeWhole(op.name, because)


def is_large(value: tf.Tensor) -> bool:
    """Returns whether an initial value is worth making in blocks. A value of unknown size is large."""
    return _size_bytes(value) > SMALL_BYTES


def initial_rows(value: tf.Tensor) -> InitialRows | MadeWhole:
    """Returns how single rows of an initial value are computed, or why only the whole value can be computed."""
    if not value.shape.is_fully_defined() or not value.shape.rank:
        return MadeWhole(value.op.name, "has no rows, or an unknown number of rows")
    reading = _Reading(tuple(value.shape.as_list()))
    try:
        formula = reading.formula(value)
    except _NeedsAllRows as found:
        return found.reason
    return InitialRows(formula, reading.shape, value.dtype, max([value.dtype.size, *reading.itemsizes]))


def _draws(formula: Formula) -> bool:
    if isinstance(formula, Computed):
        return any(map(_draws, formula.inputs))
    return isinstance(formula, Drawn)


@dataclass
class _Reading:
    """Reads the ops that make a value with this shape."""

    shape: tuple[int, ...]
    itemsizes: list[int] = field(default_factory=list)
    _known: dict[str, Formula] = field(default_factory=dict)

    def formula(self, tensor: tf.Tensor) -> Formula:
        if tensor.name not in self._known:
            self._known[tensor.name] = self._read(tensor)
        return self._known[tensor.name]

    def _read(self, tensor: tf.Tensor) -> Formula:
        if not tensor.shape.is_fully_defined():
            raise _NeedsAllRows(tensor.op, "makes a value of unknown shape")
        if not self._has_rows(tensor):
            return _shared(tensor)
        op = tensor.op
        if op.control_inputs:
            raise _NeedsAllRows(op, f"waits for «{op.control_inputs[0].name}»")
        if op.type == "Const":
            return _constant(op)
        if op.type in ("Fill", "BroadcastTo"):
            return self._filled(op)
        self.itemsizes.append(tensor.dtype.size)
        if op.type in STREAM_DRAWS or op.type in STATELESS_DRAWS:
            return self._drawn(op)
        if op.type in EXACT:
            _refuse_reordered(op)
            return Computed(op, tuple(self.formula(each) for each in op.inputs))
        raise _NeedsAllRows(op, f"({op.type}) is neither a random draw nor an exact elementwise op")

    def _has_rows(self, tensor: tf.Tensor) -> bool:
        rank = tensor.shape.rank
        if rank > len(self.shape):
            raise _NeedsAllRows(tensor.op, f"makes a value of shape {tensor.shape.as_list()}")
        return rank == len(self.shape) and tensor.shape[0] != 1

    def _filled(self, op: tf.Operation) -> Formula:
        value = op.inputs[1] if op.type == "Fill" else op.inputs[0]
        return self.formula(value)

    def _drawn(self, op: tf.Operation) -> Drawn:
        if tuple(op.outputs[0].shape.as_list()) != self.shape:
            raise _NeedsAllRows(op, f"draws numbers of shape {op.outputs[0].shape.as_list()}")
        if op.type in STATELESS_DRAWS and not _starts_at_first_number(op):
            raise _NeedsAllRows(op, "draws with a counter or an algorithm of its own")
        return Drawn(op)


def _refuse_reordered(op: tf.Operation) -> None:
    """Raises _NeedsAllRows for a sum of sums, a product of products, or a sum of products or quotients.

    TensorFlow's arithmetic optimizer computes them in another order where it knows their shapes: a + 1 + b as
    (1 + b) + a, and a b + a c as a (b + c). It does not know the shapes of blocks, so the last bits would differ.
    """
    behind = [_passed_on(tensor) for tensor in op.inputs]
    for kind in (SUMS, PRODUCTS):
        if op.type in kind and any(one.type in kind for one in behind):
            raise _NeedsAllRows(op, f"({op.type}) has operands that TensorFlow reorders: {_types(behind)}")
    for kind in (PRODUCTS, QUOTIENTS):
        if op.type in SUMS and all(one.type in kind for one in behind):
            raise _NeedsAllRows(op, f"({op.type}) has operands with a factor that TensorFlow moves: {_types(behind)}")


def _passed_on(tensor: tf.Tensor) -> tf.Operation:
    op = tensor.op
    while op.type in PASS_ON:
        op = op.inputs[0].op
    return op


def _types(ops: Sequence[tf.Operation]) -> str:
    return ", ".join(op.type for op in ops)


def _shared(tensor: tf.Tensor) -> Shared:
    for op in edit.in_order(edit.ancestors([tensor.op])):
        if any(_size_bytes(output) > SHARED_BYTES for output in op.outputs):
            raise _NeedsAllRows(op, f"is needed whole for «{tensor.op.name}», which all rows use")
    return Shared(tensor)


def _size_bytes(tensor: tf.Tensor) -> float:
    count = tensor.shape.num_elements()
    return float("inf") if count is None else count * max(1, tensor.dtype.size or 1)


def _constant(op: tf.Operation) -> Shared:
    number = only_number(op.get_attr("value"))
    if number is None:
        raise _NeedsAllRows(op, "is a constant with a number for each element")
    return Shared(number=number)


def only_number(content: tensor_pb2.TensorProto) -> np.ndarray | None:
    """Returns the number (an array of rank 0) that a constant repeats, or None if the constant has several numbers.

    TensorFlow stores such a constant as one number. Here, it is not expanded: it can be as large as a table.
    """
    if content.tensor_content or sum(len(getattr(content, name)) for name in CONTENTS) != 1:
        return None
    scalar = tensor_pb2.TensorProto()
    scalar.CopyFrom(content)
    scalar.tensor_shape.Clear()
    return np.asarray(tf.make_ndarray(scalar))


def _starts_at_first_number(op: tf.Operation) -> bool:
    """Returns whether a stateless draw counts its numbers from zero, with the algorithm Philox."""
    key, counter, algorithm = (op.inputs[at].op for at in (KEY, COUNTER, ALGORITHM))
    if key.type != "StatelessRandomGetKeyCounter" or counter is not key:
        return False
    if algorithm.type == "Const":
        return int(tf.make_ndarray(algorithm.get_attr("value"))) in (PHILOX, CHOSEN_BY_DEVICE)
    return algorithm.type == "StatelessRandomGetAlg"


def whole_initial_values(
    graph: tf.Graph, variables: Iterable[Variable], names: Collection[str]
) -> tuple[WholeInitialValue, ...]:
    """Returns the large initial values, among those of the variables with these names, that can only be made whole."""
    found = []
    for variable in variables:
        if variable.name not in names:
            continue
        value = graph.get_operation_by_name(variable.initializer).inputs[1]
        rows = initial_rows(value) if is_large(value) else None
        if isinstance(rows, MadeWhole):
            size_bytes = math.prod(variable.shape) * value.dtype.size
            found.append(WholeInitialValue(variable.name, str(rows), size_bytes))
    return tuple(found)
