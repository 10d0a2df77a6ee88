"""Metrics of one batch: Keras accumulates metrics over an epoch, but here the metrics are reset in every step.

Keras reports the loss as a mean that a variable accumulates, but a distributed step reports the loss of its own batch.
Metric variables therefore become values of the step: each update computes the next value, and each read returns the
latest value. If a variable starts at zero and the step only adds to it, its last value is the contribution of the
batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from parallax_runner.graph import edit
from parallax_runner.graph.traced.variables import TracedVariable

KNOWN = frozenset({"ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})


@dataclass(frozen=True)
class Written:
    """A metric variable that a step writes.

    `value` is the variable's last value in the step, a tensor of the traced graph. `is_sum` is set if the variable
    starts at zero and the step only adds values that do not depend on metrics. `reads` maps the names of the tensors
    through which the step reads the variable to whether they have the last value.
    """

    value: Any
    is_sum: bool
    reads: Mapping[str, bool] = field(default_factory=dict)


def start_anew(graph: Any, metrics: Sequence[TracedVariable]) -> dict[int, Written]:
    """Replaces the variables of `metrics` in a traced step with values. Keeps a variable that the step uses in any way
    other than reads and writes.

    Returns the variables that the step writes, by id. `is_sum` is False for a variable that is not replaced.
    """
    users = users_of(graph, (metric.variable for metric in metrics))
    reads = {op for ops in users.values() for op in _reads_among(ops)}
    found: dict[int, Written] = {}
    replaced: set[Any] = set()
    for metric in metrics:
        ops = users.get(id(metric.variable), [])
        if not ops:
            continue
        written = _as_values(graph, metric, ops, reads)
        writes = set(ops) - _reads_among(ops)
        if written.value is not None:
            replaced.update(writes)
        if writes:
            found[id(metric.variable)] = written
    wait_no_longer(graph, replaced)
    return found


def _reads_among(ops: Iterable[Any]) -> set[Any]:
    return {op for op in ops if op.type == "ReadVariableOp"}


def users_of(graph: Any, variables: Iterable[Any]) -> dict[int, list[Any]]:
    """Returns the ops that use each of these variables that the step captures, by the variable's id, in the order in
    which they run."""
    captured = {outer._id: inner for outer, inner in graph.captures if outer.dtype == tf.resource}
    users = {}
    for one in variables:
        handle = captured.get(one.handle._id)
        if handle is not None:
            users[id(one)] = edit.in_order(set(handle.consumers()))
    return users


def _as_values(graph: Any, metric: TracedVariable, users: list[Any], reads: set[Any]) -> Written:
    """Replaces a metric variable in the step with values, unless an op uses the variable in another way."""
    if not all(op.type in KNOWN for op in users):
        return Written(value=None, is_sum=False)
    is_sum = _starts_at_zero(metric) and all(_only_adds(op, reads) for op in users)
    with graph.as_default():
        value, read = as_values_of_step(users, _first_value(metric))
    return Written(value, is_sum, read)


def wait_no_longer(graph: Any, replaced: set[Any]) -> None:
    """Removes the control edges from `replaced` writes."""
    graph.control_outputs = [op for op in graph.control_outputs if op not in replaced]
    for op in graph.get_operations():
        if replaced.intersection(op.control_inputs):
            edit.set_control_inputs(op, [one for one in op.control_inputs if one not in replaced])


def _first_value(metric: TracedVariable) -> Any:
    if metric.initial is not None:
        return metric.initial()
    with tf.init_scope():
        value = metric.variable.numpy()
    return tf.constant(value)


def _starts_at_zero(metric: TracedVariable) -> bool:
    dtype = metric.variable.dtype
    return (dtype.is_floating or dtype.is_integer) and not metric.variable.numpy().any()


def _only_adds(op: Any, reads: set[Any]) -> bool:
    """Returns whether an op leaves a metric variable unchanged, or adds a value that does not depend on `reads`."""
    if op.type == "ReadVariableOp":
        return True
    value = op.inputs[1]
    if op.type != "AssignVariableOp":
        return not _depends(value, reads)
    while True:
        if value.op.type == "Identity":
            value = value.op.inputs[0]
        elif value.op.type in ("Add", "AddV2"):
            one, other = value.op.inputs
            value, added = (one, other) if _depends(one, reads) else (other, one)
            if _depends(added, reads):
                return False
        else:
            return value.op in reads and value.op.inputs[0] is op.inputs[0]


def _depends(tensor: Any, reads: set[Any]) -> bool:
    return not reads.isdisjoint(edit.ancestors([tensor.op], control=False))


def as_values_of_step(users: list[Any], value: Any) -> tuple[Any, dict[str, bool]]:
    """Replaces the reads and writes of a variable, in the order in which they run, with values. `value` is the first
    one. Returns the last value, and the names of the tensors through which values are read (see `Written`)."""
    reads: dict[str, bool] = {}
    for op in users:
        if op.type == "ReadVariableOp":
            read = tf.identity(value)  # an op of its own, which does not stand for another use of the value
            edit.reconnect(op.outputs[0], read, where=lambda _: True)
            reads[read.name] = True
            continue
        reads = dict.fromkeys(reads, False)
        if op.type == "AssignVariableOp":
            value = op.inputs[1]
        else:
            value = value + op.inputs[1] if op.type == "AssignAddVariableOp" else value - op.inputs[1]
    return value, reads
