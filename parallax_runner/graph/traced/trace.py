"""Traces one training step into a separate graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from parallax_runner.graph.traced.gradients import Recorded, recorded
from parallax_runner.graph.traced.reads import taken_before_loops, written_inside
from parallax_runner.graph.traced.row_updates import SparseUpdates, rows_updated

# A step takes the features by name, trains once, and returns the loss, or a dict with «loss» and optionally «metrics».
StepFunction = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Steps:
    """The steps that a model's function created. Both steps take the features by name.

    `train` trains on a batch. `evaluate` does not train, and returns a dict with the batch's «loss» (or None), its
    «outputs» by name and, optionally, «metrics». `model` is the Keras model that the steps belong to, or None. `notes`
    tell the user which settings the steps ignore. `unconverted` is the training step without the conversion of its
    branches and loops, or None if `train` is not converted.
    """

    train: StepFunction
    evaluate: StepFunction | None = None
    model: Any = None
    notes: Sequence[str] = ()
    unconverted: StepFunction | None = None

    @property
    def own(self) -> StepFunction:
        """The training step as the user made it."""
        return self.unconverted or self.train


@dataclass(frozen=True)
class Trace:
    """The ops of a step in `graph`.

    `inputs` maps the components of the features to the graph's placeholders. `returned` is the step's return value,
    which contains tensors of the graph.
    """

    graph: branches.StepGraph
    inputs: dict[str, Any]
    returned: Any
    gradients: list[Recorded]

    def tensor(self, returned: Any) -> Any:
        """Returns the source of a returned tensor. Unlike the returned tensor, the source does not wait for the step's
        writes."""
        return returned.op.inputs[0] if returned.op.type == "Identity" else returned


def trace(step: StepFunction, features: Specs, sparse_updates: SparseUpdates) -> Trace:
    """Traces the ops of `step` in the order of eager execution.

    The functions that `step` calls are inlined, including compiled functions. `features` contains the type of each
    feature, and `sparse_updates` determines which rows Keras optimizers write.
    """
    kept_inside = frozenset[int]()
    while True:
        traced, moved = _trace_once(step, features, sparse_updates, kept_inside)
        wrongly_moved = moved & written_inside(traced.graph)
        if not wrongly_moved:
            return traced
        kept_inside |= wrongly_moved  # only a complete trace shows what a loop writes after it has read


def _trace_once(
    step: StepFunction,
    features: Specs,
    sparse_updates: SparseUpdates,
    kept_inside: frozenset[int],
) -> tuple[Trace, set[int]]:
    """Returns a trace, and the handle ids of the variables whose reads were moved out of loops and branches.

    The reads of the variables in `kept_inside` are not moved.
    """
    signature = dict(sorted(features.items()))
    graph, gradients = branches.StepGraph("step"), list[Recorded]()
    with ExitStack() as stack:
        stack.enter_context(functions_in_line())
        stack.enter_context(recorded(gradients, graph))
        moved = stack.enter_context(taken_before_loops(graph, kept_inside))
        if "keras" in sys.modules:
            stack.enter_context(branches.in_line())
            stack.enter_context(rows_updated(sparse_updates, gradients))
        func_graph.func_graph_from_py_func("step", step, (signature,), {}, func_graph=graph)
    names = [component for name, spec in signature.items() for component in components(name, spec)]
    inputs = dict(zip(names, graph.inputs, strict=False))
    return Trace(graph, inputs, graph.structured_outputs, gradients), moved


@contextmanager
def functions_in_line() -> Iterator[None]:
    """Runs every `tf.function` as a plain Python function during the `with` block.

    Branches and loops on tensors are converted to ops.
    """

    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        function = this.python_function
        return (converted(function) if this._autograph else function)(*args, **kwargs)

    with mock.patch.object(polymorphic_function.Function, "__call__", call):
        yield


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the same function, with its branches and loops on tensors converted to ops."""
    converting: Callable[..., Any] = autograph_util.py_func_from_autograph(function)
    return converting


@contextmanager
def eager_on_cpu() -> Iterator[None]:
    """Keeps eager ops off the GPU: a driver must not occupy a GPU, and a worker's session needs the worker's GPU."""
    with suppress(RuntimeError):  # the user's module has already used devices
        tf.config.set_visible_devices([], "GPU")
    with tf.device("CPU:0"):
        yield


def loss_of(returned: Any) -> Any:
    """Returns the loss from the return value of a step. Raises CaptureError if the return value contains no loss."""
    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
    if not isinstance(loss, tf.Tensor) or loss.shape.rank != 0 or not loss.dtype.is_floating:
        raise CaptureError(
            "a training step must return its loss, a floating-point scalar, or a dict with the loss under 'loss', "
            f"not {returned!r}"
        )
    return loss
