"""Finds variables whose rows are known one step in advance, because their ids depend only on the next batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.rows_written import BY_IDS
from parallax_runner.graph import edit
from parallax_runner.graph.same_values import sources
from parallax_runner.graph.single_device_graph import Gradient
from parallax_runner.graph.tables import READS, STATIC

FED = "Placeholder"
DRAWS_BY = "seed2"  # the attribute that marks stateful random ops
ANY_LENGTH = "PlaceholderWithDefault"  # the op that wraps a raw gradient's ids (graph/gradients_hook.py)


def unknown_ahead(
    graph: tf.Graph,
    region: Collection[tf.Operation],
    table: Sequence[str],
    gradients: Iterable[Gradient],
    step: Collection[tf.Operation],
    features: Collection[str],
) -> str | None:
    """Returns the reason why rows cannot be requested before the step begins, or None if they can be requested.

    `table` contains the variable first, then its slots. `gradients` are the variable's gradients, `region` is the
    update region, `step` contains the ops of a step, and `features` contains the names of the data's tensors.
    """
    lookups = [op for op in _lookups(graph, table, step) if op not in region]
    for op in lookups:
        reason = _hindrance(op, features)
        if reason is not None:
            return reason
    found = frozenset[str]().union(*(sources(op.inputs[1]) for op in lookups))
    ids = frozenset(one.indices for one in gradients if one.indices)
    if not all(_sources_of_ids(graph, one) <= found for one in ids):
        return "the gradient has ids that do not come from the lookups"
    return _written_elsewhere(graph, region, table, ids)


def _lookups(graph: tf.Graph, table: Sequence[str], step: Collection[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields the ops of a step that look up rows of the table's variables."""
    for name in table:
        for op in graph.get_operation_by_name(name).outputs[0].consumers():
            if op.type == "ResourceGather" and op in step:
                yield op


def lead_to(ids: tf.Tensor) -> set[tf.Operation]:
    """Returns the ops that compute the ids."""
    return edit.ancestors([ids.op], control=False)


def draws(op: tf.Operation) -> bool:
    """Returns whether an op is a stateful random op. A copy of such an op with the same seed would repeat the op's
    draws."""
    return DRAWS_BY in op.node_def.attr and not op.node_def.attr[DRAWS_BY].HasField("placeholder")


def _hindrance(op: tf.Operation, features: Collection[str]) -> str | None:
    """Returns the reason why the ids of a lookup are not known before its step, or None if they are known."""
    if op.control_inputs:
        return f"the lookup «{op.name}» waits for «{op.control_inputs[0].name}»"
    for needed in sorted(lead_to(op.inputs[1]), key=lambda one: one.name):
        is_feature = needed.type == FED and needed.outputs[0].name in features
        # All tables of a graph are static (graph/tables.py).
        is_of_table = needed.type in STATIC or needed.type in READS
        is_known = is_of_table or (edit.is_plain(needed) and needed.type != FED)
        if not (is_feature or draws(needed) or is_known):
            return f"the ids of the lookup «{op.name}» depend on «{needed.name}»"
    return None


def _written_elsewhere(
    graph: tf.Graph, region: Collection[tf.Operation], table: Sequence[str], ids: frozenset[str]
) -> str | None:
    """Returns a sentence about an update that may write rows whose ids are not in the gradient, or None if there is no
    such update."""
    for name in table:
        users = graph.get_operation_by_name(name).outputs[0].consumers()
        for op in sorted(users, key=lambda one: one.name):
            if op in region and edit.is_write(op) and not (op.type.startswith(BY_IDS) and _by(op) <= ids):
                return f"the update «{op.name}» may write rows that a step does not touch"
    return None


def _by(op: tf.Operation) -> frozenset[str]:
    names = [argument.name for argument in op.op_def.input_arg]
    return sources(op.inputs[names.index("indices")])


def _sources_of_ids(graph: tf.Graph, indices: str) -> frozenset[str]:
    """Returns the names of the tensors from which a gradient's ids come."""
    ids = graph.get_tensor_by_name(indices)
    return sources(ids.op.inputs[0] if ids.op.type == ANY_LENGTH else ids)
