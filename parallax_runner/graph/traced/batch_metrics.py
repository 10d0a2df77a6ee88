"""Metrics of one batch: Keras accumulates them over an epoch, and here every step resets them.

Keras reports the loss as a mean that a variable accumulates. A step of a distributed run reports the loss of its own
batch. So these variables become values of the step: each update makes the next value, each read sees the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from parallax_runner.graph import edit
from parallax_runner.graph.traced.variables import TracedVariable

KNOWN = frozenset({"ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})


def start_anew(graph: Any, metrics: Iterable[TracedVariable]) -> None:
    """Replaces these variables in a traced step, but for those that it uses in another way than to read and write."""
    captured = {outer._id: inner for outer, inner in graph.captures if outer.dtype == tf.resource}
    written: set[Any] = set()
    for metric in metrics:
        handle = captured.get(metric.variable.handle._id)
        if handle is None:
            continue
        users = edit.in_order(set(handle.consumers()))
        if all(op.type in KNOWN for op in users):
            with graph.as_default():
                _replace(users, _first_value(metric))
            written |= {op for op in users if op.type != "ReadVariableOp"}
    graph.control_outputs = [op for op in graph.control_outputs if op not in written]
    for op in graph.get_operations():
        if written.intersection(op.control_inputs):
            edit.set_control_inputs(op, [one for one in op.control_inputs if one not in written])


def _first_value(metric: TracedVariable) -> Any:
    return tf.constant(metric.variable.numpy()) if metric.initial is None else metric.initial()


def _replace(users: list[Any], value: Any) -> None:
    for op in users:
        if op.type == "ReadVariableOp":
            edit.reconnect(op.outputs[0], value, where=lambda _: True)
        elif op.type == "AssignVariableOp":
            value = op.inputs[1]
        else:
            value = value + op.inputs[1] if op.type == "AssignAddVariableOp" else value - op.inputs[1]
