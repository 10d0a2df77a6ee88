"""The border between the backward pass and what the model does with its result.

Everything an update needs, short of the raw gradients, is the *update region*: post-processing such as clipping, the
update ops, and whatever else the train op asks for. Only consumers in that region, and not those inside the backward
pass itself, are to see aggregated gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import Gradient


@dataclass(frozen=True)
class Boundary:
    """`gradients` reach the train op; `region` is the set of ops that run on their aggregate."""

    gradients: tuple[Gradient, ...]
    region: frozenset[tf.Operation]

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the gradients' values and indices."""
        return frozenset(name for one in self.gradients for name in (one.values, one.indices) if name)


def find_boundary(graph: tf.Graph, train_op: str, recorded: Iterable[Gradient]) -> Boundary:
    """Keeps those of the recorded gradients that an op of the update region consumes.

    A gradient that only a later backward pass reads (a gradient penalty) is a step on the way to the raw gradient, not
    one itself.
    """
    recorded = tuple(dict.fromkeys(recorded))
    names = frozenset(name for gradient in recorded for name in (gradient.values, gradient.indices) if name)
    needed = edit.ancestors([graph.as_graph_element(train_op)], stop_at=names)
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
        """Whether a later gradient of the same variable is made from this one."""
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
