"""Finds the variables whose update depends on whether rows with repeated ids are merged."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary
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
    found: dict[str, str] = {}
    trained = {gradient.variable for gradient in boundary.gradients}
    for gradient in boundary.gradients:
        op = _first_nonlinear_op(graph, boundary, gradient)
        if op is None:
            continue
        found.setdefault(gradient.variable, op.name)
        for name in sorted(_written_from(op, boundary)):
            owner = owners.get(name, name)
            if owner in trained:
                found.setdefault(owner, op.name)
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


def _written_from(op: tf.Operation, boundary: Boundary) -> set[str]:
    """Returns the variables whose new values are computed from the results of `op`."""
    written: set[str] = set()
    seen, stack = {op}, [op]
    while stack:
        current = stack.pop()
        if edit.is_write(current):
            written.update(handle.name for handle in edit.handle_of(current))
        for consumer in (each for output in current.outputs for each in output.consumers()):
            if consumer in boundary.region and consumer not in seen:
                seen.add(consumer)
                stack.append(consumer)
    return written
