"""Evaluates traced losses in a graph and a session of their own, so no variable of the model or the run changes.

Variables have their initial values there, with one exception: a large table that is only looked up has no values. Each
row that a lookup asks for is computed from its id, because whether a loss is a mean does not depend on the values, and
the driver must not hold tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit, seeds
from parallax_runner.graph.components import placeholder_name
from parallax_runner.graph.traced.imported import First, add_variables, captured, without_captured, without_colocation
from parallax_runner.graph.traced.lookups import look_up_rows
from parallax_runner.graph.traced.loss_kinds import ROUNDING, ROUNDING_OF_16_BITS
from parallax_runner.graph.traced.loss_terms import LossTerm, TracedLosses
from parallax_runner.graph.traced.made_up_values import bytes_of, make_up_rows, replace_draws, varied
from parallax_runner.graph.traced.tables import add_tables

# Losses that need more bytes of variables, not counting large tables, are not evaluated.
MOST_BYTES = 2**29


class LossGraph:
    """The losses for a `whole` batch and for a `half` of it in one graph, with common variables.

    `usable` contains the numbers of the terms that are evaluated. The other terms draw random numbers in a way that
    cannot be replaced, or need too many bytes of variables.
    """

    def __init__(self, whole: TracedLosses, half: TracedLosses, firsts: Iterable[First]) -> None:
        self._graph = tf.Graph()
        traces = {"whole": whole, "half": half}
        used = set[int]().union(*map(_captured_handles, traces.values()))
        with self._graph.as_default():
            tf.set_random_seed(1)
            variables = add_variables([one for one in firsts if one.traced.variable.handle._id in used])
            captures = [*whole.graph.captures, *half.graph.captures]
            resources = {**variables, **add_tables(captures, variables)}
            imported = {name: _imported(traced, resources, name) for name, traced in traces.items()}
            self._placeholders = {name: placeholders for name, (placeholders, _) in imported.items()}
            look_up_rows(self._graph)
            make_up_rows(self._graph, variables.values())
            replace_draws(self._graph)
            self._values = {name: list(map(_as_number, tensors)) for name, (_, tensors) in imported.items()}
        terms = [[value.op for value in values] for values in zip(*self._values.values(), strict=True)]
        self._needed = [edit.ancestors(ops, control=False) for ops in terms]
        self.usable = self._find_usable(list(variables.values()))
        self._variables = self._variables_read(variables.values())
        with self._graph.as_default():
            self._set = tf.group(*(one.initializer for one in self._variables), tf.tables_initializer())
            self._vary = tf.group(*varied(self._variables))

    def rounding(self, term: int) -> float:
        """Returns the rounding error of a term, relative to its value."""
        types = {tensor.dtype for op in self._needed[term] for tensor in op.outputs}
        return ROUNDING_OF_16_BITS if types & {tf.float16, tf.bfloat16} else ROUNDING

    def session(self) -> Any:
        """Returns a session on the CPU in which the variables have their initial values."""
        config = tf.ConfigProto(device_count={"GPU": 0})
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # takes longer than it saves
        made = tf.Session(graph=self._graph, config=config)
        made.run(self._set)
        return made

    def vary(self, session: Any) -> None:
        """Changes the trained variables, because layers whose weights are zero or small can hide a loss."""
        session.run(self._vary)

    def evaluate(self, session: Any, batch: Mapping[str, np.ndarray], *, is_half: bool) -> dict[int, float]:
        """Returns the value of each usable term for a whole batch or a half of it."""
        trace = "half" if is_half else "whole"
        fed = {placeholder: batch[name] for name, placeholder in self._placeholders[trace].items()}
        values = session.run([self._values[trace][number] for number in self.usable], fed)
        return dict(zip(self.usable, map(float, values), strict=True))

    def _variables_read(self, variables: Iterable[Any]) -> list[Any]:
        """Returns the variables that the usable terms need, in the order of their names."""
        needed = set[tf.Operation]().union(*(self._needed[number] for number in self.usable))
        return sorted((one for one in variables if one.handle.op in needed), key=lambda one: one.name)

    def _find_usable(self, variables: Sequence[Any]) -> list[int]:
        sizes = {one.handle.op: bytes_of(one) for one in variables}
        held: set[Any] = set()
        graph_def = self._graph.as_graph_def()
        found = []
        for number, needed in enumerate(self._needed):
            more = held | (needed & sizes.keys())
            if sum(sizes[op] for op in more) > MOST_BYTES or _draws(needed, graph_def):
                continue
            held = more
            found.append(number)
        return found


def terms_of(traced: TracedLosses) -> list[LossTerm]:
    """Returns the totals and terms of all losses, in the order in which a `LossGraph` numbers them."""
    return [term for loss in traced.losses for term in (loss.total, *loss.terms)]


def _imported(traced: TracedLosses, resources: Mapping[int, Any], name: str) -> tuple[dict[str, Any], list[Any]]:
    """Imports what the terms need into the default graph. Returns the placeholders of the features, and the terms.
    `resources` contains the variables and lookup tables by the ids of their handles.

    Control edges are left out. The terms then do not wait for writes, such as updates of optimizers and of metrics.
    """
    tensors = [term.tensor for term in terms_of(traced)]
    definition = _without_control_edges(without_colocation(traced.graph.as_graph_def()))
    definition = tf.graph_util.extract_sub_graph(definition, [tensor.op.name for tensor in tensors])
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
    return placeholders, tf.import_graph_def(definition, fed, [tensor.name for tensor in tensors], name=name)


def _without_control_edges(definition: Any) -> Any:
    for node in definition.node:
        node.input[:] = [each for each in node.input if not each.startswith("^")]
    return definition


def _as_number(tensor: Any) -> Any:
    return tf.reduce_sum(tf.cast(tensor, tf.float64))


def _draws(needed: Iterable[Any], graph_def: Any) -> bool:
    """Returns whether one of the ops draws random numbers, itself or in a function that it calls."""
    nodes = [op.node_def for op in needed]
    called = seeds.called_by(nodes, graph_def)
    inner = [function.node_def for function in graph_def.library.function if function.signature.name in called]
    return any(seeds.draws(node) for each in (nodes, *inner) for node in each)


def _captured_handles(traced: TracedLosses) -> set[int]:
    """Returns the handle ids of the variables that a trace uses."""
    return {outer._id for outer, _ in traced.graph.captures if outer.dtype == tf.resource}
