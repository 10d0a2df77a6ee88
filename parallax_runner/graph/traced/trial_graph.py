"""Traces of a step in a graph and a session of their own, so no variable of the model or the run changes.

Variables have their initial values there, with one exception: a large table that is only looked up has no values. Each
row that a lookup asks for is computed from its id, because whether a loss is a mean does not depend on the values, and
the driver must not hold tables. Nor must it hold the maps of vocabularies that grow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit, seeds
from parallax_runner.graph.components import placeholder_name
from parallax_runner.graph.traced.imported import First, add_variables, captured, without_captured, without_colocation
from parallax_runner.graph.traced.lookups import look_up_rows
from parallax_runner.graph.traced.loss_terms import TracedLosses
from parallax_runner.graph.traced.made_up_values import make_up_rows, make_up_rows_of_keys, replace_draws, varied
from parallax_runner.graph.traced.tables import add_tables

# What needs more bytes of variables, not counting large tables, is not evaluated.
MOST_BYTES = 2**29


class TrialGraph:
    """Several traces of a step in one graph, with common variables.

    `wanted` are the tensors of each trace that are imported, with what they need. `tensors` are these tensors in the
    graph, in the same order.
    """

    def __init__(
        self, traces: Mapping[str, TracedLosses], wanted: Mapping[str, Sequence[Any]], firsts: Iterable[First]
    ) -> None:
        self.graph = tf.Graph()
        used = set[int]().union(*map(_captured_handles, traces.values()))
        with self.graph.as_default():
            tf.set_random_seed(1)
            variables = add_variables([one for one in firsts if one.traced.variable.handle._id in used])
            captures = [pair for one in traces.values() for pair in one.graph.captures]
            resources = {**variables, **add_tables(captures, variables)}
            imported = {name: _imported(one, wanted[name], resources, name) for name, one in traces.items()}
            look_up_rows(self.graph)
            make_up_rows_of_keys(self.graph)
            make_up_rows(self.graph, variables.values())
            replace_draws(self.graph)
        self._placeholders = {name: placeholders for name, (placeholders, _) in imported.items()}
        self.tensors = {name: tensors for name, (_, tensors) in imported.items()}
        self.variables = list(variables.values())
        self._set: Any = None
        self._vary: Any = None

    def needed(self, tensors: Iterable[Any]) -> set[Any]:
        """Returns the ops that the tensors need."""
        return edit.ancestors([tensor.op for tensor in tensors], control=False)

    def hold(self, needed: Collection[Any]) -> None:
        """Gives a session the variables that these ops need."""
        read = sorted((one for one in self.variables if one.handle.op in needed), key=lambda one: one.name)
        with self.graph.as_default():
            self._set = tf.group(*(one.initializer for one in read), tf.tables_initializer())
            self._vary = tf.group(*varied(read))

    def session(self) -> Any:
        """Returns a session on the CPU in which the variables have their initial values."""
        config = tf.ConfigProto(device_count={"GPU": 0})
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # takes longer than it saves
        made = tf.Session(graph=self.graph, config=config)
        made.run(self._set)
        return made

    def vary(self, session: Any) -> None:
        """Changes the trained variables, because layers whose weights are zero or small can hide a loss."""
        session.run(self._vary)

    def fed(self, trace: str, batch: Mapping[str, np.ndarray]) -> dict[Any, Any]:
        """Returns the values of the placeholders of a trace."""
        return {placeholder: batch[name] for name, placeholder in self._placeholders[trace].items()}


def draws(needed: Iterable[Any], graph_def: Any) -> bool:
    """Returns whether one of the ops draws random numbers, itself or in a function that it calls."""
    nodes = [op.node_def for op in needed]
    called = seeds.called_by(nodes, graph_def)
    inner = [function.node_def for function in graph_def.library.function if function.signature.name in called]
    return any(seeds.draws(node) for each in (nodes, *inner) for node in each)


def _imported(
    traced: TracedLosses, wanted: Sequence[Any], resources: Mapping[int, Any], name: str
) -> tuple[dict[str, Any], list[Any]]:
    """Imports what the `wanted` tensors need into the default graph. Returns the placeholders of the features, and the
    tensors. `resources` contains the variables and lookup tables by the ids of their handles.

    Control edges are left out. The tensors then do not wait for writes, such as updates of optimizers and of metrics.
    """
    definition = _without_control_edges(without_colocation(traced.graph.as_graph_def()))
    definition = tf.graph_util.extract_sub_graph(definition, [tensor.op.name for tensor in wanted])
    kept = {node.name for node in definition.node}
    placeholders = {
        feature: tf.placeholder(inner.dtype, inner.shape, name=f"{name}_{placeholder_name(feature)}")
        for feature, inner in traced.inputs.items()
        if inner.op.name in kept
    }
    fed = {traced.inputs[feature].name: placeholder for feature, placeholder in placeholders.items()}
    for outer, inner in traced.graph.captures:
        if inner.op.name in kept:
            fed[inner.name] = captured(outer, resources)
    definition = without_captured(definition, fed)
    return placeholders, tf.import_graph_def(definition, fed, [tensor.name for tensor in wanted], name=name)


def _without_control_edges(definition: Any) -> Any:
    for node in definition.node:
        node.input[:] = [each for each in node.input if not each.startswith("^")]
    return definition


def _captured_handles(traced: TracedLosses) -> set[int]:
    """Returns the handle ids of the variables that a trace uses."""
    return {outer._id for outer, _ in traced.graph.captures if outer.dtype == tf.resource}
