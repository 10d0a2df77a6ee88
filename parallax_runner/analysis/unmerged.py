"""Finds the variables whose update depends on whether rows with repeated ids are merged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary
from parallax_runner.graph.marks import marks_behind, positions
from parallax_runner.graph.single_device_graph import Gradient

# Linear ops: duplicate rows can be summed before or after these ops with the same result.
LINEAR_OPS = frozenset({"Identity", "Neg", "Cast", "Mul", "RealDiv"})
# Ops that optimizers use to merge duplicate rows, and ops that add rows one by one.
MERGING_OPS = frozenset({"UnsortedSegmentSum", "ResourceScatterAdd", "ResourceScatterSub"})
# Merging does not change the result of these ops: a sum of finite rows is finite, except for overflow.
CHECKS = frozenset({"IsFinite"})


def nonlinear_ops(graph: tf.Graph, boundary: Boundary, owners: Mapping[str, str]) -> dict[str, str]:
    """Maps each variable whose update depends on merging to the first op whose result depends on merging.

    Variables with dense gradients can be affected too: a norm over all gradients changes every update. `owners` maps
    each slot to its variable.
    """
    trained = {gradient.variable for gradient in boundary.gradients}
    firsts: dict[int, tf.Operation] = {}
    marked: defaultdict[tf.Operation, int] = defaultdict(int)
    marks: defaultdict[str, int] = defaultdict(int)
    for number, gradient in enumerate(boundary.gradients):
        first = _first_nonlinear_op(graph, boundary, gradient)
        if first is not None:
            firsts[number] = first
            marked[first] |= 1 << number
            marks[gradient.variable] |= 1 << number
    for op, behind in marks_behind(boundary.region, marked, control=False).items():
        if behind and edit.is_write(op):
            for handle in edit.handle_of(op):
                marks[owners.get(handle.name, handle.name)] |= behind
    return {variable: firsts[next(positions(marks[variable]))].name for variable in trained & marks.keys()}


def _first_nonlinear_op(graph: tf.Graph, boundary: Boundary, gradient: Gradient) -> tf.Operation | None:
    if gradient.indices is None:
        return None
    seen = {gradient.values}
    stack = [graph.get_tensor_by_name(gradient.values)]
    while stack:
        for op in sorted(stack.pop().consumers(), key=lambda op: op.name):
            if op not in boundary.region or _merges_or_checks(op):
                continue
            if not _is_linear(op, seen):
                return op
            seen.update(output.name for output in op.outputs)
            stack.extend(op.outputs)
    return None


def _merges_or_checks(op: tf.Operation) -> bool:
    return op.type in MERGING_OPS | CHECKS or op.type.startswith("ResourceSparseApply")


def _is_linear(op: tf.Operation, seen: Collection[str]) -> bool:
    """Returns whether an op is linear in those of its inputs whose names are in `seen`."""
    inputs = [tensor.name in seen for tensor in op.inputs]
    if op.type == "RealDiv" and inputs[1]:
        return False
    return sum(inputs) <= 1 and (op.type in LINEAR_OPS or edit.joins_rows(op))
