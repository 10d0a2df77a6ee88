"""Finds the tables whose vocabularies grow in a training step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.variable_info import GrowingTable
from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.growing.marks import KeyCall, is_growing, key_calls, table_of
from parallax_runner.graph.seeds import called_by
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def growing_tables(single: SingleDeviceGraph) -> tuple[GrowingTable, ...]:
    """Returns the tables into which a training step inserts keys.

    Raises PlanError if a training step looks up keys in a table without inserting them, or inserts keys into a table
    that it does not train; if validation or a served model inserts keys; if a lookup is in a branch or a loop; if a
    lookup without inserts can run before or after the inserts of the same step; or if a table that evicts keys has
    several lookups that insert in a step.
    """
    graph_def = single.meta_graph.graph_def
    if not any(is_growing(node) for node in all_nodes(graph_def)):
        return ()
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    step = edit.ancestors(
        [graph.get_operation_by_name(single.train_op), *_ops(graph, [single.loss, *single.fetched_in_training])]
    )
    evaluated = edit.ancestors(_ops(graph, [*single.fetched_in_validation, *single.outputs.values()]))
    calls, calls_of_evaluation = key_calls(step), key_calls(evaluated)
    _refuse_branches(step | evaluated, [*calls, *calls_of_evaluation], graph_def)
    _refuse_inserts_in_evaluation(calls_of_evaluation)
    _refuse_steps_without_inserts(calls)
    _refuse_any_order(calls)
    _refuse_several_steps(calls)
    found = [_described(call, call.write) for call in calls if call.write is not None]
    _refuse_untrained(found, single)
    return tuple(dict.fromkeys(found))


def tables_of_keys(operations: Iterable[tf.Operation]) -> frozenset[str]:
    """Returns the names of the variables in which these ops write the initial rows of new keys."""
    return frozenset(call.write.inputs[0].op.name for call in key_calls(operations) if call.write is not None)


def _described(call: KeyCall, write: tf.Operation) -> GrowingTable:
    table = call.table
    return GrowingTable(
        layer=table.table,
        variable=write.inputs[0].op.name,
        map_variables=tuple(handle.op.name for handle in call.handles.given),
        places=table.places,
        has_overflow_rows=table.has_overflow_rows,
        min_count=table.min_count,
        unused_steps=table.unused_steps,
        every_steps=table.every_steps,
        renewed=tuple(one.slot.name for one in call.slot_writes),
    )


def _ops(graph: tf.Graph, tensors: Iterable[str]) -> list[tf.Operation]:
    return [graph.get_tensor_by_name(name).op for name in tensors]


def _refuse_branches(ops: Iterable[tf.Operation], calls: Iterable[KeyCall], graph_def: tf.GraphDef) -> None:
    """Raises PlanError if a call is in a branch or a loop, which other ranks may not enter at the same time."""
    within = [table_of(node).table for node in _nodes_in_functions_of(ops, graph_def) if is_growing(node)]
    within += [call.table.table for call in calls if _is_in_branch(call)]
    if within:
        raise PlanError(
            f"«{within[0]}» (GrowingEmbedding) is called in a branch, a loop or a function that stays one op, where "
            "ranks cannot ask each other for rows: look up the rows before it"
        )


def _nodes_in_functions_of(ops: Iterable[tf.Operation], graph_def: tf.GraphDef) -> list[tf.NodeDef]:
    """Returns the nodes of all functions that the ops call."""
    called = called_by([op.node_def for op in ops], graph_def)
    return [node for one in graph_def.library.function if one.signature.name in called for node in one.node_def]


def _is_in_branch(call: KeyCall) -> bool:
    """Returns whether a call is in a branch or a loop of TensorFlow 1, into which a Switch or an Enter hands
    variables."""
    return any(handle.op.type != "VarHandleOp" for handle in call.handles.given)


def _refuse_inserts_in_evaluation(calls: Iterable[KeyCall]) -> None:
    for call in calls:
        if call.write is not None:
            raise PlanError(
                f"validation or the served model calls «{call.table.table}» (GrowingEmbedding) with training=True, so "
                "it would insert keys: call the layer with training=False for them"
            )


def _refuse_any_order(calls: Sequence[KeyCall]) -> None:
    """Raises PlanError if nothing orders a lookup without inserts and the inserts of the same table."""
    needs = {call.op: edit.ancestors([call.op]) for call in calls}
    inserts = [call for call in calls if call.write is not None]
    lookups = [call for call in calls if call.write is None]
    for lookup, insert in itertools.product(lookups, inserts):
        is_ordered = insert.op in needs[lookup.op] or lookup.op in needs[insert.op]
        if lookup.table == insert.table and not is_ordered:
            raise PlanError(
                f"the training step also calls «{lookup.table.table}» (GrowingEmbedding) without training=True, and "
                "nothing decides whether it sees the keys that the step inserts: call it with training=True, or add a "
                "control dependency"
            )


def _refuse_several_steps(calls: Sequence[KeyCall]) -> None:
    """Raises PlanError if a training step calls a table that evicts keys several times, each of which would be a step
    of the table."""
    steps = Counter(call.table.table for call in calls if call.write is not None and call.table.shape.evicts)
    for table, number in steps.items():
        if number > 1:
            raise PlanError(
                f"the training step calls «{table}» (GrowingEmbedding) {number} times, and the table evicts keys that "
                "its last steps have not seen, so a step must be one call: call it once with concatenated keys"
            )


def _refuse_untrained(tables: Sequence[GrowingTable], single: SingleDeviceGraph) -> None:
    trained = {gradient.variable for gradient in single.gradients}
    for table in tables:
        if table.variable not in trained:
            raise PlanError(
                f"the vocabulary of «{table.layer}» (GrowingEmbedding) grows, but no gradient reaches its rows "
                f"«{table.variable}»: set trainable=True, or call the layer with training=False"
            )


def _refuse_steps_without_inserts(calls: Sequence[KeyCall]) -> None:
    inserting = {call.table.table for call in calls if call.write is not None}
    for call in calls:
        if call.table.table not in inserting:
            raise PlanError(
                f"the training step calls «{call.table.table}» (GrowingEmbedding) without training=True, so its "
                "vocabulary would never grow: call the model with training=True in the training step"
            )
