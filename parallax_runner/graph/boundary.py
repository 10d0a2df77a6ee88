"""The boundary between the backward pass and the ops that use its gradients.

The *update region* consists of all ops that the train op needs, except the ops that compute the raw gradients. It
contains post-processing such as clipping, and the update ops. Only consumers in that region read aggregated gradients.
Consumers inside the backward pass still read the raw gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import Gradient


@dataclass(frozen=True)
class Boundary:
    """The gradients that reach the train op, and the update region, where ops read the aggregated gradients."""

    gradients: tuple[Gradient, ...]
    region: frozenset[tf.Operation]

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the tensors that contain the gradients' values and indices."""
        return frozenset(name for one in self.gradients for name in (one.values, one.indices) if name)


def find_boundary(graph: tf.Graph, train_op: str, recorded: Iterable[Gradient]) -> Boundary:
    """Returns the update region and the recorded gradients that an op in that region consumes.

    A gradient that only a later backward pass reads, as in a gradient penalty, is not a raw gradient.
    """
    return boundary_of(graph, [graph.as_graph_element(train_op)], recorded)


def boundary_of(graph: tf.Graph, ends: Iterable[tf.Operation], recorded: Iterable[Gradient]) -> Boundary:
    """Does the same for a step that runs several ops."""
    recorded = tuple(dict.fromkeys(recorded))
    names = frozenset(name for gradient in recorded for name in _names(gradient))
    needed = edit.ancestors(ends, stop_at=names)
    reached = [gradient for gradient in recorded if _is_read_in(graph, gradient, needed)]
    behind = {gradient: _ops_behind(graph, gradient) for gradient in reached}
    region = frozenset(needed.difference(*behind.values()))
    used = [gradient for gradient in reached if _is_read_in(graph, gradient, region)]
    kept = tuple(gradient for gradient in used if not _leads_to_another(graph, gradient, behind))
    return Boundary(gradients=kept, region=region)


def _names(gradient: Gradient) -> list[str]:
    return [gradient.values] if gradient.indices is None else [gradient.values, gradient.indices]


def _is_read_in(graph: tf.Graph, gradient: Gradient, ops: Collection[tf.Operation]) -> bool:
    """Returns whether one of the ops reads the gradient's values."""
    return any(consumer in ops for consumer in graph.get_tensor_by_name(gradient.values).consumers())


def _ops_behind(graph: tf.Graph, gradient: Gradient) -> set[tf.Operation]:
    """Returns the ops that compute a gradient."""
    return edit.ancestors([graph.get_tensor_by_name(name).op for name in _names(gradient)], control=False)


def _leads_to_another(graph: tf.Graph, gradient: Gradient, behind: Mapping[Gradient, Collection[tf.Operation]]) -> bool:
    """Returns whether a later gradient of the same variable is computed from this gradient."""
    op = graph.get_tensor_by_name(gradient.values).op
    others = [one for one in behind if one.variable == gradient.variable and one != gradient]
    return any(op in behind[other] for other in others)
