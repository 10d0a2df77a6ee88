"""Determines whether an update treats each row separately. If it does, some rows can be updated later than others."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.rows_written import BY_IDS
from parallax_runner.analysis.update_region.elementwise import ELEMENTWISE
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary

# Ops that remove repeated ids are allowed too, because the rewrite bypasses them
# (rewrite/every_route/skip_deduplication.py).
ROW_BY_ROW = ELEMENTWISE | {"Cast", "Identity", "NoOp", "ResourceGather"}
# An update reads a few numbers, such as a learning rate. A tensor with more numbers than this is not carried to the
# next step.
MAX_CARRIED_NUMBERS = 4096


def tied_rows(graph: tf.Graph, boundary: Boundary, table: Sequence[str]) -> str | None:
    """Returns the reason why an update needs all rows of a step at once, or None if it treats each row separately.

    `table` contains the variable, followed by its slots.
    """
    gradients = [one for one in boundary.gradients if one.variable == table[0]]
    starts = {name for one in gradients for name in (one.values, one.indices) if name is not None}
    writes = _writes(graph, boundary, table)
    between = _between(starts, writes)
    for op in edit.in_order(between):
        if not (op in writes or op.type in ROW_BY_ROW or _removes_repeated_ids(op, starts)):
            return f"the update's op «{op.name}» ({op.type}) needs all rows of a step"
        for tensor in op.inputs:
            if tensor.name not in starts and tensor.op not in between and not _can_be_carried(tensor):
                return (
                    f"the update's op «{op.name}» reads «{tensor.name}», which is too large to keep for the next step"
                )
    readers = edit.descendants([graph.get_tensor_by_name(name) for name in starts], within=set(boundary.region))
    other = min((op.name for op in readers - between), default=None)
    if other is not None:
        return f"«{other}» also reads the gradient"
    apart = min((op.name for op in writes if op not in between or not op.type.startswith(BY_IDS)), default=None)
    return None if apart is None else f"the update «{apart}» writes rows that the gradient does not contain"


def _writes(graph: tf.Graph, boundary: Boundary, table: Sequence[str]) -> set[tf.Operation]:
    handles = [graph.get_operation_by_name(name).outputs[0] for name in table]
    return {op for handle in handles for op in handle.consumers() if op in boundary.region and edit.is_write(op)}


def _between(starts: set[str], writes: set[tf.Operation]) -> set[tf.Operation]:
    """Returns the ops on the paths from the tensors named in `starts` to `writes`."""
    found: set[tf.Operation] = set()
    for op in edit.in_order(edit.ancestors(writes, stop_at=frozenset(starts))):
        reads = any(tensor.name in starts or tensor.op in found for tensor in op.inputs)
        if reads or any(control in found for control in op.control_inputs):
            found.add(op)
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
