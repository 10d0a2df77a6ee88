"""Marks the targets of tapes in a training step that the script writes (docs/design/0092), and records the gradients
that the step then computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow as tf

from parallax_runner.graph.gradients_hook import of_any_length
from parallax_runner.graph.single_device_graph import DivisorKind
from parallax_runner.graph.traced.loss_divisors import mark


@dataclass(frozen=True)
class RawGradient:
    """A gradient that a tape computes for a variable. `targets` are the numbers of the losses of which it is the
    gradient. `indices` is None for a dense gradient."""

    targets: frozenset[int]
    values: Any
    indices: Any | None = None


class TargetNumbers:
    """Gives each target of a tape a number: -1, -2, … in the order in which the step computes their gradients."""

    def __init__(self) -> None:
        self._targets: list[Any] = []  # refers to them, so that ids stay unique

    def of(self, target: Any) -> int:
        """Returns the number of a tensor, a new one if it is asked for the first time."""
        for number, known in enumerate(self._targets, 1):
            if known is target:
                return -number
        self._targets.append(target)
        return -len(self._targets)


def has_variables(sources: Any) -> bool:
    """Returns whether some of the sources of a gradient are variables."""
    return any(hasattr(source, "handle") for source in tf.nest.flatten(sources))


@contextmanager
def targets_marked(graph: Any, numbers: TargetNumbers, raw: list[RawGradient] | None = None) -> Iterator[None]:
    """Divides the gradients of the losses that a tape differentiates for variables by marks of the value 1, in the
    trace `graph` during the `with` block. A step of one device computes the same.

    A division of the loss itself would not be in the gradient, because the tape has recorded the loss before. Appends
    the gradients to `raw`, if given. Gradients in loops and branches are left as they are.
    """
    original = tf.GradientTape.gradient

    def gradient(
        this: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        if not has_variables(sources):
            return original(this, target, sources, output_gradients, unconnected_gradients)
        terms = [numbers.of(one) for one in tf.nest.flatten(target)]
        if tf.compat.v1.get_default_graph() is graph:
            output_gradients = _divided(graph, target, terms, output_gradients)
        found = original(this, target, sources, output_gradients, unconnected_gradients)
        return found if raw is None else _noted(raw, frozenset(terms), sources, found, graph)

    with mock.patch.object(tf.GradientTape, "gradient", tf.autograph.experimental.do_not_convert(gradient)):
        yield


def _divided(graph: Any, target: Any, terms: list[int], output_gradients: Any) -> Any:
    """Returns the gradients with which a tape begins, each divided by the mark of its target."""
    targets = tf.nest.flatten(target)
    given = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
    can_be_marked = len(given) == len(targets) and all(_is_in(graph, one) for one in targets)
    if not can_be_marked:
        return output_gradients
    return [_divided_one(*each) for each in zip(targets, terms, given, strict=True)]


def _is_in(graph: Any, target: Any) -> bool:
    return isinstance(target, tf.Tensor) and getattr(target, "graph", None) is graph and target.dtype.is_floating


def _divided_one(target: Any, term: int, start: Any) -> Any:
    first = tf.ones_like(target) if start is None else tf.convert_to_tensor(start, target.dtype)
    return first / mark(tf.ones([], target.dtype), DivisorKind.ONE_IF_SUM, term)


def _noted(raw: list[RawGradient], terms: frozenset[int], sources: Any, found: Any, graph: Any) -> Any:
    """Returns the gradients, with ops that stand for them alone."""
    flat_sources, flat = tf.nest.flatten(sources), tf.nest.flatten(found, expand_composites=False)
    if len(flat_sources) != len(flat) or tf.compat.v1.get_default_graph() is not graph:
        return found
    noted = [
        grad if grad is None or not hasattr(source, "handle") else _noted_one(raw, terms, grad)
        for source, grad in zip(flat_sources, flat, strict=True)
    ]
    return tf.nest.pack_sequence_as(sources, noted)


def _noted_one(raw: list[RawGradient], terms: frozenset[int], grad: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        grad = of_any_length(grad)
        raw.append(RawGradient(terms, grad.values, grad.indices))
    else:
        grad = tf.identity(grad)
        raw.append(RawGradient(terms, grad))
    return grad
