"""Traces only the losses of a training step, with the terms that they consist of."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.framework import func_graph

from parallax_runner.graph import edit
from parallax_runner.graph.components import Specs, components
from parallax_runner.graph.traced.loss_divisors import divisors_marked
from parallax_runner.graph.traced.loss_targets import RawGradient, TargetNumbers, has_variables, targets_marked
from parallax_runner.graph.traced.trace import Steps, functions_in_line

KERAS_LOSS, KERAS_LAYER = "keras.src.losses.loss", "keras.src.layers.layer"


@dataclass(frozen=True)
class LossTerm:
    """A loss in a traced graph, and how the script makes it. If `tensor` is not a scalar, the loss is the sum of its
    elements, because a gradient of a tensor is the gradient of that sum.

    `name` says where the term comes from. `call` is the call in the script that the remedy is about: «compile»,
    «add_loss», «loss» (an object of `keras.losses` that the script calls itself), «average»
    (`tf.nn.compute_average_loss`) or «step». `reduction` is the
    reduction of a Keras loss, or None. `is_masked` says whether a Keras mask reaches the loss, and `is_weighted`
    whether its examples have weights. `number` counts the Keras losses and the added losses in the order in which the
    step computes them. The loss of a step as a whole has the number of a tape's target (loss_targets.py).
    """

    name: str
    tensor: Any
    call: str
    number: int
    reduction: str | None = None
    is_masked: bool = False
    is_weighted: bool = False


@dataclass(frozen=True)
class StepLoss:
    """The loss whose gradients a step computes for variables: its value as a whole, and the terms that it depends on.

    If `adds_terms` is set, Keras itself adds the terms. Otherwise, code in the script combines them, and may divide a
    sum by the number of examples.
    """

    total: LossTerm
    terms: tuple[LossTerm, ...]
    adds_terms: bool


@dataclass(frozen=True)
class TracedLosses:
    """The losses of a step in `graph`. `inputs` maps the components of the features to the graph's placeholders.

    `raw` are the gradients of a step that the script writes, and `applied` the tensors that the step then passes to
    Keras optimizers. Both are empty if Keras itself adds the terms of the loss.
    """

    graph: func_graph.FuncGraph
    inputs: dict[str, Any]
    losses: tuple[StepLoss, ...]
    raw: tuple[RawGradient, ...] = ()
    applied: tuple[Any, ...] = ()


def trace_losses(steps: Steps, features: Specs) -> TracedLosses:
    """Traces the training step, and returns the losses whose gradients it computes. Keras layers are called with
    `training=False`."""
    signature = dict(sorted(features.items()))
    graph = func_graph.FuncGraph("losses")
    numbers, raw, applied = TargetNumbers(), list[RawGradient](), list[Any]()
    recorder = _Recorder(graph, _names_of_losses(steps.model), numbers)
    adds_terms = keras_adds_terms(steps.model)

    def step(batch: dict[str, Any]) -> None:
        steps.train(batch)

    with ExitStack() as stack:
        stack.enter_context(functions_in_line())
        stack.enter_context(recorder.gradients())
        if "keras" in sys.modules:
            stack.enter_context(recorder.keras_terms())
            stack.enter_context(_not_training())
            stack.enter_context(_without_updates([] if adds_terms else applied))
        if not adds_terms:
            stack.enter_context(recorder.average_losses())
            stack.enter_context(divisors_marked(graph, are_decided=False))
            stack.enter_context(targets_marked(graph, numbers, raw))
        func_graph.func_graph_from_py_func("losses", step, (signature,), {}, func_graph=graph)
    names = [component for name, spec in signature.items() for component in components(name, spec)]
    inputs = dict(zip(names, graph.inputs, strict=False))
    return TracedLosses(graph, inputs, recorder.losses(adds_terms=adds_terms), tuple(raw), tuple(applied))


def keras_adds_terms(model: Any) -> bool:
    """Returns whether Keras itself adds the terms of the loss: the model has Keras' own `train_step` and
    `compute_loss`."""
    if model is None:
        return False
    import keras

    kind = type(model)
    return kind.train_step is keras.Model.train_step and kind.compute_loss is keras.Model.compute_loss


def _names_of_losses(model: Any) -> dict[int, str]:
    """Returns the names of the losses that were passed to `compile`, by the id of the loss."""
    compiled = getattr(getattr(model, "_compile_loss", None), "_flat_losses", None) or ()
    found: dict[int, str] = {}
    for one in compiled:
        of_output = f" of the output «{one.name}»" if len(compiled) > 1 else ""
        found[id(one.loss)] = f"the loss «{one.loss.name}»{of_output} in compile"
    return found


@contextmanager
def _not_training() -> Iterator[None]:
    """Calls each Keras layer with `training=False` instead of `training=True`, so that batch statistics and dropout do
    not make a difference between a batch and its halves."""
    layer = sys.modules[KERAS_LAYER].Layer
    original = layer.__call__

    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("training") is not None:
            kwargs["training"] = False
        return original(this, *args, **kwargs)

    with mock.patch.object(layer, "__call__", call):
        yield


@contextmanager
def _without_updates(applied: list[Any]) -> Iterator[None]:
    """Omits the updates of Keras optimizers, because they take most of the time of a trace. Appends the tensors of the
    gradients that they get to `applied`."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    def apply(this: Any, grads: Any, trainable_variables: Any = None) -> None:
        applied.extend(tf.nest.flatten([one for one in grads if one is not None], expand_composites=True))

    with mock.patch.object(BaseOptimizer, "apply", apply), mock.patch.object(LossScaleOptimizer, "apply", apply):
        yield


class _Recorder:
    """Records the losses of a step while it is traced in `graph`. `names` maps ids of losses to their names, and
    `numbers` gives the targets of tapes their numbers."""

    def __init__(self, graph: func_graph.FuncGraph, names: dict[int, str], numbers: TargetNumbers) -> None:
        self._graph = graph
        self._names = names
        self._numbers = numbers
        self._targets: list[Any] = []
        self._terms: list[LossTerm] = []
        self._number = itertools.count()

    def losses(self, *, adds_terms: bool) -> tuple[StepLoss, ...]:
        """Returns the recorded losses, each with the terms that its value depends on."""
        found = []
        for number, target in enumerate(self._targets, 1):
            needed = edit.ancestors([target.op], control=False)
            terms = tuple(term for term in self._terms if term.tensor.op in needed)
            name = "the loss of the training step"
            if len(self._targets) > 1:
                name = f"loss {number} of the {len(self._targets)} losses whose gradients the training step computes"
            total = LossTerm(name, target, "step", self._numbers.of(target))
            found.append(StepLoss(total, terms, adds_terms))
        return tuple(found)

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Records the targets of all gradients of variables."""
        original = tf.GradientTape.gradient

        def gradient(this: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            if has_variables(sources):
                for one in tf.nest.flatten(target):
                    self._numbers.of(one)
                known = {id(one) for one in self._targets}  # a loss can have gradients for several sets of variables
                self._targets += [one for one in self._here(target) if id(one) not in known]
            return original(this, target, sources, *args, **kwargs)

        with mock.patch.object(tf.GradientTape, "gradient", gradient):
            yield

    @contextmanager
    def keras_terms(self) -> Iterator[None]:
        """Records the values of Keras losses, and the losses that layers add."""
        loss, layer = sys.modules[KERAS_LOSS].Loss, sys.modules[KERAS_LAYER].Layer
        with (
            mock.patch.object(loss, "__call__", self._noting_loss(loss.__call__)),
            mock.patch.object(layer, "add_loss", self._noting_added(layer.add_loss)),
        ):
            yield

    @contextmanager
    def average_losses(self) -> Iterator[None]:
        """Records the losses of `tf.nn.compute_average_loss`."""
        original = tf.nn.compute_average_loss

        def average(*args: Any, **kwargs: Any) -> Any:
            value = original(*args, **kwargs)
            number = next(self._number)
            name = "a loss of tf.nn.compute_average_loss"
            self._terms += [LossTerm(name, tensor, call="average", number=number) for tensor in self._here(value)]
            return value

        with mock.patch.object(tf.nn, "compute_average_loss", average):
            yield

    def _noting_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from keras.src.backend import get_keras_mask

        def call(this: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            value = original(this, y_true, y_pred, sample_weight)
            number = next(self._number)
            name = self._names.get(id(this), f"the loss «{this.name}»")
            is_masked = any(get_keras_mask(one) is not None for one in tf.nest.flatten(y_pred))
            self._terms += [
                LossTerm(
                    name,
                    tensor,
                    call="compile" if id(this) in self._names else "loss",
                    reduction=this.reduction or "none",
                    is_masked=is_masked,
                    is_weighted=sample_weight is not None,
                    number=number,
                )
                for tensor in self._here(value)
            ]
            return value

        return call

    def _noting_added(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_loss(this: Any, loss: Any) -> None:
            name = f"a loss that the layer «{this.name}» adds with add_loss"
            number = next(self._number)
            self._terms += [LossTerm(name, tensor, call="add_loss", number=number) for tensor in self._here(loss)]
            original(this, loss)

        return add_loss

    def _here(self, value: Any) -> list[Any]:
        """Returns the tensors of the traced graph. Tensors of a branch or a loop are left out."""
        flat = tf.nest.flatten(value)
        return [one for one in flat if isinstance(one, tf.Tensor) and getattr(one, "graph", None) is self._graph]
