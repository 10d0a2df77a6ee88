"""Finds the variables whose update depends on whether rows with repeated ids are merged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

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
    firsts = [_first_nonlinear_op(graph, boundary, gradient) for gradient in boundary.gradients]
    marked: defaultdict[tf.Operation, int] = defaultdict(int)
    marks: defaultdict[str, int] = defaultdict(int)
    for number, (gradient, first) in enumerate(zip(boundary.gradients, firsts, strict=True)):
        if first is not None:
            marked[first] |= 1 << number
            marks[gradient.variable] |= 1 << number
    for op, behind in marks_behind(boundary.region, marked, control=False).items():
        if behind and edit.is_write(op):
            for handle in edit.handle_of(op):
                marks[owners.get(handle.name, handle.name)] |= behind
    found: dict[str, str] = {}
    for variable in trained & marks.keys():
        first = firsts[next(positions(marks[variable]))]
        assert first is not None
        found[variable] = first.name
    return found


def _first_nonlinear_op(graph: tf.Graph, boundary: Boundary, gradient: Gradient) -> tf.Operation | None:
    if gradient.indices is None:
        return None
    seen = {gradient.values}
    stack = [graph.get_tensor_by_name(gradient.values)]
    while stack:
        for op in sorted(stack.pop().consumers(), key=lambda op: op.name):
            if (
                op not in boundary.region
                or op.type in MERGING_OPS | CHECKS
                or op.type.startswith("ResourceSparseApply")
            ):
                continue
            inputs = [tensor.name in seen for tensor in op.inputs]
            is_linear = op.type in LINEAR_OPS or edit.joins_rows(op)
            if not is_linear or sum(inputs) > 1 or (op.type == "RealDiv" and inputs[1]):
                return op
            seen.update(output.name for output in op.outputs)
            stack.extend(op.outputs)
    return None
