"""The boundary between the backward pass and the ops that use its gradients.

The *update region* consists of all ops that the train op needs, except the ops that compute the raw gradients. It
contains post-processing such as clipping, and the update ops. Only consumers in that region read aggregated gradients.
Consumers inside the backward pass still read the raw gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    names = frozenset(name for gradient in recorded for name in (gradient.values, gradient.indices) if name)
    needed = edit.ancestors(ends, stop_at=names)
    reached = [
        gradient
        for gradient in recorded
        if any(consumer in needed for consumer in graph.get_tensor_by_name(gradient.values).consumers())
    ]
    behind: dict[Gradient, set[tf.Operation]] = {}
    for gradient in reached:
        tensors = [graph.get_tensor_by_name(name) for name in (gradient.values, gradient.indices) if name]
        behind[gradient] = edit.ancestors([tensor.op for tensor in tensors], control=False)
    region = frozenset(needed.difference(*behind.values()))

    def is_step(gradient: Gradient) -> bool:
        """Returns whether a later gradient of the same variable is computed from this gradient."""
        op = graph.get_tensor_by_name(gradient.values).op
        return any(
            later.variable == gradient.variable and later != gradient and op in ops for later, ops in behind.items()
        )

    kept = tuple(
        gradient
        for gradient in reached
        if any(consumer in region for consumer in graph.get_tensor_by_name(gradient.values).consumers())
        and not is_step(gradient)
    )
    return Boundary(gradients=kept, region=region)
