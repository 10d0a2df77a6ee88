"""Ops in a script that read values computed from gradients in a step, such as a summary of the norm after clipping.

Observers are not part of the step, but they read values that exist only after aggregation. Fetching an observer
therefore requires the whole step, and values from all workers.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary

# Ops that depend on these ops can be dead, or can run more than once in a step.
CONTROL_FLOW = frozenset(
    f"{ref}{kind}"
    for ref in ("", "Ref")
    for kind in ("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "Select")
)


def behind_aggregation(graph: tf.Graph, boundary: Boundary) -> set[tf.Operation]:
    """Returns the ops in the update region that depend on a gradient."""
    tensors = [graph.get_tensor_by_name(name) for name in sorted(boundary.tensors)]
    return edit.descendants(tensors, within=set(boundary.region))


def observers_of(graph: tf.Graph, boundary: Boundary) -> set[tf.Operation]:
    """Returns the ops outside the update region that read values computed from gradients in the region.

    Follows only data edges. Omits ops that write a variable.
    """
    leads_to_gradients = edit.ancestors(graph.get_tensor_by_name(name).op for name in boundary.tensors)
    outside = {
        op
        for op in set(graph.get_operations()) - boundary.region - leads_to_gradients
        if op.type not in CONTROL_FLOW and not edit.is_write(op)
    }
    made = [output for op in behind_aggregation(graph, boundary) for output in op.outputs]
    return edit.descendants(made, within=outside)


def numbers_among(
    observers: set[tf.Operation], behind: set[tf.Operation], region: Iterable[tf.Operation]
) -> set[tf.Operation]:
    """Returns the observers whose values each worker can fetch in each step.

    Such an observer computes a scalar, either from a whole tensor by summing it, or from other scalars. Each server can
    therefore sum its own part and send one scalar. The observer's other inputs are constants or values that a step
    computes anyway. These observers have no side effects such as printing.
    """
    available, numbers = set(region), set[tf.Operation]()
    for op in edit.in_order(observers):
        if not _is_pure(op, available):
            continue
        available.add(op)
        if not _gives_number(op):
            continue
        if sums_to_number(op) or _combines_numbers(op, observers, behind, numbers):
            numbers.add(op)
    return numbers


def _is_pure(op: tf.Operation, available: set[tf.Operation]) -> bool:
    """Returns whether an op without side effects needs only constants and the results of `available` ops."""
    if not edit.is_plain(op):
        return False
    needs = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return all(need in available or need.type == "Const" for need in needs)


def _gives_number(op: tf.Operation) -> bool:
    return len(op.outputs) == 1 and is_number(op.outputs[0].shape)


def _combines_numbers(
    op: tf.Operation, observers: set[tf.Operation], behind: set[tf.Operation], numbers: set[tf.Operation]
) -> bool:
    """Returns whether the inputs that are computed from gradients are scalars that each worker can fetch."""
    for tensor in op.inputs:
        is_from_region = tensor.op in behind
        if not is_from_region and tensor.op not in observers:
            continue
        is_known = is_from_region or tensor.op in numbers
        if not is_known or not is_number(tensor.shape):
            return False
    return True


def is_number(shape: tf.TensorShape) -> bool:
    """Returns whether a tensor with this shape has one element. The number of dimensions does not matter,
    because a norm can keep its dimensions."""
    return shape.num_elements() == 1


def sums_to_number(op: tf.Operation) -> bool:
    """Returns whether the op sums over its whole input. Parts of the input can then be summed separately."""
    if op.type != "Sum" or op.outputs[0].shape.rank == 0:
        return op.type in ("L2Loss", "Sum")
    axes, rank = tf.get_static_value(op.inputs[1]), op.inputs[0].shape.rank
    return axes is not None and rank is not None and {int(axis) % rank for axis in axes.flat} == set(range(rank))
