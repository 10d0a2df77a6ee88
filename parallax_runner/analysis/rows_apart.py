"""Determines whether an update treats each row separately. If it does, some rows can be updated later than others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.rows_written import BY_IDS
from parallax_runner.analysis.update_region.elementwise import ELEMENTWISE
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary
from parallax_runner.graph.marks import bits_of, marks_behind

# Ops that remove repeated ids are allowed too, because the rewrite bypasses them
# (rewrite/every_route/skip_deduplication.py).
ROW_BY_ROW = ELEMENTWISE | {"Cast", "Identity", "NoOp", "ResourceGather"}
# An update reads a few numbers, such as a learning rate. A tensor with more numbers than this is not carried to the
# next step.
MAX_CARRIED_NUMBERS = 4096


class UpdatesByRows:
    """The updates of a step's variables. `step` contains the ops of the step."""

    def __init__(self, graph: tf.Graph, boundary: Boundary, step: Collection[tf.Operation]) -> None:
        self._graph = graph
        self._region = boundary.region
        self._starts: defaultdict[str, set[str]] = defaultdict(set)
        for one in boundary.gradients:
            self._starts[one.variable] |= {name for name in (one.values, one.indices) if name is not None}
        self._bits = bits_of(self._starts)
        # The variables with whose gradients an op, or an op behind it, computes.
        self._marks = marks_behind(step, self._readers_of_gradients())

    def tied_rows(self, table: Sequence[str]) -> str | None:
        """Returns the reason why an update needs all rows of a step at once, or None if it treats each row separately.

        `table` contains the variable, followed by its slots.
        """
        starts = self._starts.get(table[0], set())
        writes = self._writes(table)
        between = self._between(table[0], writes)
        for op in edit.in_order(between):
            if not (op in writes or op.type in ROW_BY_ROW or _removes_repeated_ids(op, starts)):
                return f"the update's op «{op.name}» ({op.type}) needs all rows of a step"
            for tensor in op.inputs:
                if tensor.name not in starts and tensor.op not in between and not _can_be_carried(tensor):
                    return (
                        f"the update's op «{op.name}» reads «{tensor.name}», which is too large to keep for the next "
                        "step"
                    )
        readers = edit.descendants([self._graph.get_tensor_by_name(name) for name in starts], within=self._region)
        other = min((op.name for op in readers - between), default=None)
        if other is not None:
            return f"«{other}» also reads the gradient"
        apart = min((op.name for op in writes if op not in between or not op.type.startswith(BY_IDS)), default=None)
        return None if apart is None else f"the update «{apart}» writes rows that the gradient does not contain"

    def _readers_of_gradients(self) -> dict[tf.Operation, int]:
        found: defaultdict[tf.Operation, int] = defaultdict(int)
        for variable, names in self._starts.items():
            for op in (op for name in names for op in self._graph.get_tensor_by_name(name).consumers()):
                found[op] |= self._bits[variable]
        return found

    def _writes(self, table: Sequence[str]) -> set[tf.Operation]:
        handles = [self._graph.get_operation_by_name(name).outputs[0] for name in table]
        return {op for handle in handles for op in handle.consumers() if op in self._region and edit.is_write(op)}

    def _between(self, variable: str, writes: Iterable[tf.Operation]) -> set[tf.Operation]:
        """Returns the ops on the paths from the gradients of the variable to `writes`."""
        starts, bit = self._starts.get(variable, set()), self._bits.get(variable, 0)
        found: set[tf.Operation] = set()
        stack = list(writes)
        while stack:
            op = stack.pop()
            if op in found or not self._marks[op] & bit:
                continue
            found.add(op)
            stack += [tensor.op for tensor in op.inputs if tensor.name not in starts]
            stack += op.control_inputs
        return found


def _removes_repeated_ids(op: tf.Operation, starts: set[str]) -> bool:
    if op.type == "Unique":
        return op.inputs[0].name in starts
    if op.type == "UnsortedSegmentSum":
        return op.inputs[1].op.type == "Unique"
    return op.type in ("Shape", "StridedSlice") and all(
        other.type in ("StridedSlice", "UnsortedSegmentSum") for other in op.outputs[0].consumers()
    )


def _can_be_carried(tensor: tf.Tensor) -> bool:
    """Returns whether the tensor is a variable's handle, or is small enough to be carried to the next step."""
    count = tensor.shape.num_elements()
    return tensor.dtype == tf.resource or (count is not None and count <= MAX_CARRIED_NUMBERS)
