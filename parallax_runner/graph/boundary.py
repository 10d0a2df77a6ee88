"""The boundary between the backward pass and the ops that use its gradients.

The *update region* consists of all ops that the train op needs, except the ops that compute the raw gradients. It
contains post-processing such as clipping, and the update ops. The ops of a vocabulary that grows do not belong to it,
because they write the initial rows of new keys before the forward pass. Only consumers in that region read aggregated
gradients. Consumers inside the backward pass still read the raw gradients.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain, permutations
from operator import or_

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.growing.marks import is_marked
from parallax_runner.graph.marks import bits_of, marks_behind
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
    names = frozenset(chain.from_iterable(map(_names, recorded)))
    needed = edit.ancestors(ends, stop_at=names)
    reached = [gradient for gradient in recorded if _is_read_in(graph, gradient, needed)]
    made_by = [op for gradient in reached for op in _made_by(graph, gradient)]
    computing = edit.ancestors([*made_by, *filter(is_marked, needed)], control=False)
    region = frozenset(needed - computing)
    used = [gradient for gradient in reached if _is_read_in(graph, gradient, region)]
    leading = _leading_to_others(graph, reached, computing)
    kept = tuple(gradient for gradient in used if gradient not in leading)
    return Boundary(gradients=kept, region=region)


def _names(gradient: Gradient) -> list[str]:
    return [gradient.values] if gradient.indices is None else [gradient.values, gradient.indices]


def _is_read_in(graph: tf.Graph, gradient: Gradient, ops: Collection[tf.Operation]) -> bool:
    """Returns whether one of the ops reads the gradient's values."""
    return any(consumer in ops for consumer in graph.get_tensor_by_name(gradient.values).consumers())


def _made_by(graph: tf.Graph, gradient: Gradient) -> list[tf.Operation]:
    """Returns the ops whose outputs are the gradient."""
    return [graph.get_tensor_by_name(name).op for name in _names(gradient)]


def _leading_to_others(
    graph: tf.Graph, gradients: Iterable[Gradient], computing: Collection[tf.Operation]
) -> set[Gradient]:
    """Returns the gradients from which a later gradient of the same variable is computed.

    `computing` contains the ops that compute the `gradients`.
    """
    of_variable: defaultdict[str, list[Gradient]] = defaultdict(list)
    for gradient in gradients:
        of_variable[gradient.variable].append(gradient)
    groups = [same for same in of_variable.values() if len(same) > 1]
    several = list(chain.from_iterable(groups))
    if not several:
        return set()
    values = {one: graph.get_tensor_by_name(one.values).op for one in several}
    bits = bits_of(values.values())
    marks = marks_behind(computing, bits, control=False)
    behind = {one: functools.reduce(or_, map(marks.__getitem__, _made_by(graph, one))) for one in several}
    pairs = chain.from_iterable(permutations(same, 2) for same in groups)
    return {one for one, other in pairs if bits[values[one]] & behind[other]}
