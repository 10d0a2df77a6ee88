"""Finds variables that each rank would train alone: updates from a rank's own examples, without a recorded gradient.

Statistics, such as those of batch normalization, are also computed from a rank's own examples. They differ from trained
variables: the computation of the loss in training does not read them.
"""

from __future__ import annotations

from collections.abc import Collection

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary
from parallax_runner.graph.effects import Effects
from parallax_runner.graph.gradients_of_values import names_in
from parallax_runner.graph.single_device_graph import SingleDeviceGraph, Variable

UNDECLARED = "none"


def refuse_own_updates(
    graph: tf.Graph,
    single: SingleDeviceGraph,
    boundary: Boundary,
    effects: Effects,
    written_by_each_rank: Collection[str],
) -> None:
    """Raises PlanError if a step trains a variable with a rank's own examples instead of an aggregated gradient.

    `written_by_each_rank` contains the variables without a recorded gradient that a step sets to values which differ by
    rank.
    """
    candidates = [one for one in _undeclared(single) if one.name in written_by_each_rank]
    if not candidates:
        return
    forward = _leads_to_loss(graph, single, boundary)
    others = {gradient for _, gradient, _ in names_in(single.meta_graph)}
    for variable in candidates:
        if not _is_read_by(forward, graph, variable):
            continue
        writes = _writes_of(variable, boundary, effects)
        if variable.is_trainable or _reads_any(writes, others, boundary):
            raise PlanError(_told(variable, writes))


def _undeclared(single: SingleDeviceGraph) -> list[Variable]:
    """Returns the variables that declare no aggregation."""
    return [one for one in single.variables if one.aggregation == UNDECLARED]


def _leads_to_loss(graph: tf.Graph, single: SingleDeviceGraph, boundary: Boundary) -> set[tf.Operation]:
    """Returns the ops from which the loss and the gradients are computed."""
    starts = [*(gradient.values for gradient in boundary.gradients), single.loss]
    return edit.ancestors([graph.get_tensor_by_name(name).op for name in starts], control=False)


def _is_read_by(forward: Collection[tf.Operation], graph: tf.Graph, variable: Variable) -> bool:
    return any(op in forward for op in graph.get_operation_by_name(variable.name).outputs[0].consumers())


def _writes_of(variable: Variable, boundary: Boundary, effects: Effects) -> list[tf.Operation]:
    return [op for op in boundary.region if variable.name in effects.written_by(op)]


def _reads_any(writes: Collection[tf.Operation], gradients: Collection[str], boundary: Boundary) -> bool:
    """Returns whether one of the writes depends on one of the gradients, other than through an aggregated gradient."""
    sources = edit.ancestors(writes, stop_at=boundary.tensors, control=False)
    return any(tensor.name in gradients for op in sources for tensor in op.inputs)


def _told(variable: Variable, writes: Collection[tf.Operation]) -> str:
    by = f" by «{min(op.name for op in writes)}»" if writes else ""
    return (
        f"variable «{variable.name}» is updated{by} from a rank's own examples, and the loss depends on it, but none "
        "of its gradients is aggregated: each rank would train its own copy. Compute the gradient of the variable, "
        "or of rows that tf.gather or an embedding looks up in it, with tf.gradients or GradientTape.gradient. For a "
        "statistic, declare aggregation=tf.VariableAggregation.MEAN or SUM. If each rank must keep its own value, as "
        "the state of a recurrent layer, declare trainable=False"
    )
