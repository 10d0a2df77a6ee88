"""Removes control edges that a traced step does not need.

A trace orders all ops on a variable: an update waits for every earlier read. The edge from a read to an update is
nearly always redundant, because the update also needs the value that was read. Each remaining edge starts at the value
instead of the read, because the rewrite can move the read.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.marks import bits_of, marks_behind

READS = frozenset({"ReadVariableOp", "ResourceGather"})


def wait_for_values(graph: tf.Graph) -> None:
    """Removes or replaces each control edge from a read to an op.

    The edge is removed if the op needs the value of the read. Otherwise it is replaced by an edge from the value.
    """
    values: dict[tf.Operation, tf.Operation] = {}
    operations = graph.get_operations()
    waiting = {op: reads for op in operations if (reads := _reads_before(op))}
    bits = bits_of(read for reads in waiting.values() for read in reads)
    needed = marks_behind(operations, bits, control=False)
    for op, reads in waiting.items():
        others = _controls_without_reads(op)
        only_before = [read for read in reads if not bits[read] & needed[op]]
        edit.set_control_inputs(op, others + [_value_of(read, values) for read in only_before])


def _reads_before(op: tf.Operation) -> list[tf.Operation]:
    """Returns the reads from which a control edge leads to the op, in an order that is the same in every process."""
    reads = [control for control in op.control_inputs if control.type in READS]
    return sorted(reads, key=lambda read: read.name)


def _controls_without_reads(op: tf.Operation) -> list[tf.Operation]:
    return [control for control in op.control_inputs if control.type not in READS]


def _value_of(read: tf.Operation, values: dict[tf.Operation, tf.Operation]) -> tf.Operation:
    if read not in values:
        with read.graph.as_default(), tf.control_dependencies(None):
            values[read] = tf.identity(read.outputs[0], name=f"{read.name}/value").op
    return values[read]


def keep_only_needed(graph: tf.Graph, ends: list[tf.Operation]) -> None:
    """Removes control edges from reads whose values `ends` do not need."""
    needed: set[tf.Operation] = set()
    stack = list(ends)
    while stack:
        op = stack.pop()
        if op not in needed:
            needed.add(op)
            stack += [tensor.op for tensor in op.inputs]
            stack += _controls_without_reads(op)
    for op in needed:
        kept = [control for control in op.control_inputs if control in needed]
        if len(kept) < len(op.control_inputs):
            edit.set_control_inputs(op, kept)
