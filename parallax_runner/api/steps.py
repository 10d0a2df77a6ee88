"""Determines, in the single-device graph, whether a fetch runs no update, some updates or a whole step."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.boundary import find_boundary
from parallax_runner.graph.edit import is_write
from parallax_runner.graph.script_graph import updates_of
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


class Steps:
    """The ops of the captured graph that belong to a step. `updates` are the ops that update variables; `whole`
    contains all ops that run in a step."""

    def __init__(self, single: SingleDeviceGraph) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(single.meta_graph.graph_def, name="")
        region = find_boundary(self.graph, single.train_op, single.gradients).region
        self.updates = frozenset(op.name for op in updates_of(self.graph, single.gradients))
        names = [name for gradient in single.gradients for name in (gradient.values, gradient.indices) if name]
        tensors = [self.graph.get_tensor_by_name(name) for name in names]
        self._aggregated = {op.name for op in edit.descendants(tensors, within=set(region))}
        self.whole = self._needed_by(single.train_op)
        self._initializers = {variable.initializer for variable in single.variables if variable.saved}

    def updates_needed(self, ops: Iterable[str]) -> frozenset[str]:
        """Returns the names of the updates that run if these ops are fetched."""
        return frozenset(name for op in ops for name in self._needed_by(op) if name in self.updates)

    def aggregate_needed(self, op: str) -> str | None:
        """Returns an op that `op` needs and that uses aggregated gradients, or None if there is no such op."""
        return next((name for name in sorted(self._needed_by(op)) if name in self._aggregated), None)

    def grouped(self, op: str) -> list[str]:
        """Returns the ops that a group waits for, including the ops of nested groups. Returns only `op` if `op` is not
        a group."""
        found: dict[str, None] = {}
        stack = [self.graph.get_operation_by_name(op)]
        while stack:
            one = stack.pop()
            if one.type == "NoOp" and one.control_inputs:
                stack += reversed(one.control_inputs)
            else:
                found[one.name] = None
        return list(found)

    def initial_values_given_by(self, op: str) -> bool:
        """Returns whether a fetch of `op` sets a saved variable to its initial value."""
        return not self._initializers.isdisjoint(self._needed_by(op))

    def assignments_of(self, op: str) -> list[tuple[str, str]]:
        """Returns (op, variable) for each write that a fetch of `op` runs, except updates and assignments of initial
        values."""
        return [
            (name, handle.name)
            for name in sorted(self._needed_by(op) - self.updates - self._initializers)
            if is_write(written := self.graph.get_operation_by_name(name))
            for handle in edit.handle_of(written)
        ]

    @functools.cache  # noqa: B019 - one instance per process
    def _needed_by(self, op: str) -> frozenset[str]:
        return frozenset(one.name for one in edit.ancestors([self.graph.get_operation_by_name(op)]))
