"""What a fetch asks for, told by the single-device graph: no update, some of them, or a whole step."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.boundary import find_boundary
from parallax_runner.graph.script_graph import updates_of
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


class Steps:
    """Knows which ops of the captured graph belong to a step."""

    def __init__(self, single: SingleDeviceGraph) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(single.meta_graph.graph_def, name="")
        region = find_boundary(self.graph, single.train_op, single.gradients).region
        self.updates = frozenset(op.name for op in updates_of(self.graph, single.gradients))
        names = [name for gradient in single.gradients for name in (gradient.values, gradient.indices) if name]
        tensors = [self.graph.get_tensor_by_name(name) for name in names]
        self._aggregated = {op.name for op in edit.descendants(tensors, within=set(region))}

    def updates_needed(self, ops: Iterable[str]) -> frozenset[str]:
        """Names of the updates that fetching these ops runs."""
        return frozenset(name for op in ops for name in self._needed_by(op) if name in self.updates)

    def aggregate_needed(self, op: str) -> str | None:
        """An op behind the aggregation of gradients that `op` needs, None if it needs none."""
        return next((name for name in sorted(self._needed_by(op)) if name in self._aggregated), None)

    @functools.cache  # noqa: B019 - there is one for the process
    def _needed_by(self, op: str) -> frozenset[str]:
        return frozenset(one.name for one in edit.ancestors([self.graph.get_operation_by_name(op)]))
