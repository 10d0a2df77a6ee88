"""Records the results of `GradientTape.gradient` and `tf.gradients` while a step is traced, as `gradients_hook` does
for `tf.gradients` in a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from unittest import mock

import tensorflow as tf
from tensorflow.python.ops import gradients_util

from parallax_runner.errors import CaptureError
from parallax_runner.graph.gradients_hook import gradient_of_value, of_any_length


@dataclass(frozen=True)
class TapeGradient:
    """The gradient of the variable whose handle has the id `handle_id`. `indices` is None for a dense gradient."""

    handle_id: int
    values: Any
    indices: Any | None


@dataclass(frozen=True)
class ValueGradient:
    """The gradient of a tensor, such as a row that the step has looked up in a variable."""

    value: Any
    gradient: Any


Recorded: TypeAlias = TapeGradient | ValueGradient


@contextmanager
def recorded(into: list[Recorded], losses: list[Any], trace: Any) -> Iterator[None]:
    """Appends to `into` every gradient that is computed for a variable or a tensor in the graph `trace` during the
    `with` block, and to `losses` each tensor whose gradients a tape computes for variables."""
    of_tape, of_graph = tf.GradientTape.gradient, gradients_util._GradientsHelper

    def gradient(this: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        found = of_tape(this, target, sources, *args, **kwargs)
        _note_losses(losses, target, sources, trace)
        flat_sources, flat = tf.nest.flatten(sources), tf.nest.flatten(found, expand_composites=False)
        if len(flat_sources) != len(flat):
            return found
        noted = [_noted(into, source, grad, trace) for source, grad in zip(flat_sources, flat, strict=True)]
        return tf.nest.pack_sequence_as(sources, noted)

    def gradients_helper(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        found = of_graph(ys, xs, *args, **kwargs)
        if tf.compat.v1.get_default_graph() is not trace:  # the backward pass of a loop or a branch
            return found
        sources = xs if isinstance(xs, Sequence) else [xs]
        return [_noted(into, source, grad, trace) for source, grad in zip(sources, found, strict=True)]

    with (
        mock.patch.object(tf.GradientTape, "gradient", gradient),
        mock.patch.object(gradients_util, "_GradientsHelper", gradients_helper),
    ):
        yield


def _note_losses(losses: list[Any], target: Any, sources: Any, trace: Any) -> None:
    if not any(hasattr(source, "handle") for source in tf.nest.flatten(sources)):
        return
    known = {id(one) for one in losses}  # a loss can have gradients for several sets of variables
    here = [one for one in tf.nest.flatten(target) if getattr(one, "graph", None) is trace]
    losses += [one for one in here if id(one) not in known]


def _noted(into: list[Recorded], source: Any, grad: Any, trace: Any) -> Any:
    if grad is None:
        return grad
    handle = getattr(source, "handle", None)
    if handle is None:
        return _noted_of_value(into, source, grad, trace)
    if tf.compat.v1.get_default_graph() is not trace:
        raise CaptureError(
            f"the gradient of «{source.name}» is computed inside a branch, a loop or a function that is not inlined: "
            "compute it outside, and use tf.cond and tf.while_loop only for code that does not train"
        )
    if isinstance(grad, tf.IndexedSlices):
        grad = of_any_length(grad)
        into.append(TapeGradient(handle._id, grad.values, grad.indices))
    else:
        grad = tf.identity(grad, name="raw_gradient")
        into.append(TapeGradient(handle._id, grad, None))
    return grad


def _noted_of_value(into: list[Recorded], source: Any, grad: Any, trace: Any) -> Any:
    if not isinstance(source, tf.Tensor) or getattr(source, "graph", None) is not trace:
        return grad
    if isinstance(grad, tf.Tensor):
        grad = tf.identity(grad, name="raw_gradient")
    grad = gradient_of_value(source, grad)
    into.append(ValueGradient(source, grad))
    return grad
