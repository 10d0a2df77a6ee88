"""Traces one training step into a separate graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.eager.polymorphic_function import autograph_util, polymorphic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import resource_variable_ops

from parallax_runner.errors import CaptureError
from parallax_runner.graph.components import Specs, components
from parallax_runner.graph.traced import branches
from parallax_runner.graph.traced.gradients import Recorded, recorded
from parallax_runner.graph.traced.reads import taken_before_loops, written_inside
from parallax_runner.graph.traced.row_updates import SparseUpdates, rows_updated

# A step takes the features by name, trains once, and returns the loss, or a dict with «loss» and optionally «metrics».
StepFunction = Callable[[dict[str, Any]], Any]
# Marks ops of a trace while it is made. Takes the trace and the list of the gradients that it has computed so far.
Marking = Callable[[Any, list[Recorded]], AbstractContextManager[None]]


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
    which contains tensors of the graph. `losses` are the tensors whose gradients a tape computes for variables.
    `variables` are the variables whose handles the graph captures, in the order of their first use. `creates_variables`
    says whether the step created variables while it was traced.
    """

    graph: branches.StepGraph
    inputs: dict[str, Any]
    returned: Any
    gradients: list[Recorded]
    losses: list[Any]
    variables: list[Any]
    creates_variables: bool = False

    def tensor(self, returned: Any) -> Any:
        """Returns the source of a returned tensor. Unlike the returned tensor, the source does not wait for the step's
        writes."""
        return returned.op.inputs[0] if returned.op.type == "Identity" else returned


def trace(step: StepFunction, features: Specs, sparse_updates: SparseUpdates, marks: Sequence[Marking] = ()) -> Trace:
    """Traces the ops of `step` in the order of eager execution.

    The functions that `step` calls are inlined, including compiled functions. `features` contains the type of each
    feature, and `sparse_updates` determines which rows Keras optimizers write. `marks` mark ops of the
    trace.
    """
    kept_inside = frozenset[int]()
    while True:
        traced, moved = _trace_once(step, features, sparse_updates, kept_inside, marks)
        wrongly_moved = moved & written_inside(traced.graph)
        if not wrongly_moved:
            return traced
        kept_inside |= wrongly_moved  # only a complete trace shows what a loop writes after it has read


def _trace_once(
    step: StepFunction,
    features: Specs,
    sparse_updates: SparseUpdates,
    kept_inside: frozenset[int],
    marks: Sequence[Marking],
) -> tuple[Trace, set[int]]:
    """Returns a trace, and the handle ids of the variables whose reads were moved out of loops and branches.

    The reads of the variables in `kept_inside` are not moved.
    """
    signature = dict(sorted(features.items()))
    graph, gradients, losses = branches.StepGraph("step"), list[Recorded](), list[Any]()
    with ExitStack() as stack:
        stack.enter_context(functions_in_line())
        by_handle = stack.enter_context(handles_noted())
        created = stack.enter_context(creations_noted())
        stack.enter_context(tf.variable_creator_scope(with_value_lifted))
        stack.enter_context(recorded(gradients, losses, graph))
        moved = stack.enter_context(taken_before_loops(graph, kept_inside))
        if "keras" in sys.modules:
            stack.enter_context(branches.in_line())
            stack.enter_context(rows_updated(sparse_updates, gradients))
        for marked in marks:
            stack.enter_context(marked(graph, gradients))
        func_graph.func_graph_from_py_func("step", step, (signature,), {}, func_graph=graph)
    names = [component for name, spec in signature.items() for component in components(name, spec)]
    inputs = dict(zip(names, graph.inputs, strict=False))
    used = [by_handle[outer._id] for outer, _ in graph.captures if _is_handle_in(outer, by_handle)]
    returned = graph.structured_outputs
    return Trace(graph, inputs, returned, gradients, losses, used, creates_variables=bool(created)), moved


@contextmanager
def handles_noted() -> Iterator[dict[int, Any]]:
    """Provides a dict from the ids of handles to variables. During the `with` block, each variable is added whose
    handle is asked for, as every op on a variable does."""
    kind = resource_variable_ops.BaseResourceVariable
    handle_of, found = kind.handle.fget, dict[int, Any]()

    def handle(this: Any) -> Any:
        handle = handle_of(this)
        if hasattr(handle, "_id"):  # a handle in a graph has none
            found[handle._id] = this
        return handle

    with mock.patch.object(kind, "handle", property(handle)):
        yield found


@contextmanager
def creations_noted() -> Iterator[list[Any]]:
    """Provides a list to which each variable is added that is created during the `with` block."""
    kind, created = resource_variable_ops.BaseResourceVariable, list[Any]()
    initialize = kind.__init__

    def noting(this: Any, *args: Any, **kwargs: Any) -> None:
        created.append(this)
        initialize(this, *args, **kwargs)

    with mock.patch.object(kind, "__init__", noting):
        yield created


def with_value_lifted(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Creates a variable within a trace. An initial value that is a tensor of the trace is computed at once, as
    `tf.function` does: the variable outlives the trace."""
    value = kwargs.get("initial_value")
    if isinstance(value, tf.Tensor) and isinstance(getattr(value, "graph", None), func_graph.FuncGraph):
        kwargs["initial_value"] = _outside_of_trace(value)
    return next_creator(**kwargs)


def _outside_of_trace(tensor: Any) -> Any:
    """Returns the value of a tensor of a trace. Raises CaptureError if the tensor depends on the trace's inputs."""

    def lifted() -> Any:
        return lift_to_graph.lift_to_graph([tensor], tf.compat.v1.get_default_graph())[tensor]

    with tf.init_scope():
        try:
            return tf.compat.v1.wrap_function(lifted, [])()
        except lift_to_graph.UnliftableError as error:
            raise CaptureError(
                "the step creates a variable whose initial value depends on the batch: create the variable before "
                "training, with a value that does not"
            ) from error


def _is_handle_in(outer: Any, by_handle: Mapping[int, Any]) -> bool:
    return outer.dtype == tf.resource and getattr(outer, "_id", None) in by_handle


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
    if not is_loss(loss):
        raise CaptureError(
            "a training step must return its loss, a floating-point scalar, or a dict with the loss under 'loss', "
            f"not {returned!r}"
        )
    return loss


def is_loss(value: Any) -> bool:
    """Returns whether a value is a floating-point scalar."""
    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating
