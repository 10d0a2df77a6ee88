"""Traces one training step eagerly into a graph of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import autograph_util, polymorphic_function
from tensorflow.python.framework import func_graph

from parallax_runner.errors import CaptureError
from parallax_runner.graph.components import Specs, components
from parallax_runner.graph.traced import branches
from parallax_runner.graph.traced.gradients import TapeGradient, recorded
from parallax_runner.graph.traced.reads import taken_before_loops
from parallax_runner.graph.traced.row_probe import RowProbe
from parallax_runner.graph.traced.row_updates import SparseUpdates, rows_updated

# A step takes the features by name, trains once, and returns the loss, or a dict that has it as «loss», and perhaps
# «metrics».
StepFunction = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Steps:
    """What a model's function has made: `train` trains on a batch; `evaluate` returns, without training, a dict with
    the batch's «loss», or None, its «outputs» by name, and perhaps «metrics». Both take the features by name. `model`
    is the Keras model that they are of, if there is one."""

    train: StepFunction
    evaluate: StepFunction | None = None
    model: Any = None


@dataclass(frozen=True)
class Trace:
    """A step's ops in `graph`; `inputs` are its placeholders by the features' components, `returned` what it returns,
    with tensors of the graph."""

    graph: branches.StepGraph
    inputs: dict[str, Any]
    returned: Any
    gradients: list[TapeGradient]

    def tensor(self, returned: Any) -> Any:
        """The tensor behind one that the step returns, which waits for all that the step writes."""
        return returned.op.inputs[0] if returned.op.type == "Identity" else returned


def trace(step: StepFunction, features: Specs, sparse_updates: SparseUpdates, probe: RowProbe) -> Trace:
    """The ops of `step`, ordered as they would run eagerly.

    Functions that it calls, also compiled ones, are traced in line. `features` gives the type of each feature,
    `sparse_updates` which rows optimizers of Keras write.
    """
    signature = dict(sorted(features.items()))
    graph, gradients = branches.StepGraph("step"), list[TapeGradient]()
    with ExitStack() as stack:
        stack.enter_context(functions_in_line())
        stack.enter_context(recorded(gradients, graph))
        stack.enter_context(taken_before_loops(graph))
        if "keras" in sys.modules:
            stack.enter_context(branches.in_line(graph))
            stack.enter_context(rows_updated(sparse_updates, gradients, probe))
        func_graph.func_graph_from_py_func("step", step, (signature,), {}, func_graph=graph)
    names = [component for name, spec in signature.items() for component in components(name, spec)]
    return Trace(graph, dict(zip(names, graph.inputs, strict=False)), graph.structured_outputs, gradients)


@contextmanager
def functions_in_line() -> Iterator[None]:
    """Every `tf.function` runs as the Python function that it was made of, branches and loops on tensors converted."""

    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        function = this.python_function
        return (converted(function) if this._autograph else function)(*args, **kwargs)

    with mock.patch.object(polymorphic_function.Function, "__call__", call):
        yield


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose branches and loops on tensors become ops."""
    converting: Callable[..., Any] = autograph_util.py_func_from_autograph(function)
    return converting


@contextmanager
def eager_on_cpu() -> Iterator[None]:
    """What runs eagerly takes no GPU: a driver has none to give away, and a worker's session wants its own."""
    with suppress(RuntimeError):  # the user's module has used devices already
        tf.config.set_visible_devices([], "GPU")
    with tf.device("CPU:0"):
        yield


def loss_of(returned: Any) -> Any:
    """The loss among what a step returned. Raises CaptureError where there is none."""
    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
    if not isinstance(loss, tf.Tensor) or loss.shape.rank != 0 or not loss.dtype.is_floating:
        raise CaptureError(
            "a training step must return its loss, a floating-point scalar, or a dict with it as 'loss', "
            f"not {returned!r}"
        )
    return loss
