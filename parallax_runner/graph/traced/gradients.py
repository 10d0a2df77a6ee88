"""Records the results of `GradientTape.gradient` while a step is traced, as `gradients_hook` does for
`tf.gradients`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.gradients_hook import of_any_length


@dataclass(frozen=True)
class TapeGradient:
    """The gradient of the variable whose handle has the id `handle_id`. `indices` is None for a dense gradient."""

    handle_id: int
    values: Any
    indices: Any | None


@contextmanager
def recorded(into: list[TapeGradient], trace: Any) -> Iterator[None]:
    """Appends to `into` every gradient that a tape computes for a variable in the graph `trace` during the `with`
    block."""
    original = tf.GradientTape.gradient

    def gradient(this: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(this, target, sources, *args, **kwargs)
        flat_sources, flat = tf.nest.flatten(sources), tf.nest.flatten(found, expand_composites=False)
        if len(flat_sources) != len(flat):
            return found
        noted = [_noted(into, source, grad, trace) for source, grad in zip(flat_sources, flat, strict=True)]
        return tf.nest.pack_sequence_as(sources, noted)

    with mock.patch.object(tf.GradientTape, "gradient", gradient):
        yield


def _noted(into: list[TapeGradient], source: Any, grad: Any, trace: Any) -> Any:
    handle = getattr(source, "handle", None)
    if grad is None or handle is None:
        return grad
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
