"""Captures the training step that a model's function creates as a `SingleDeviceGraph`."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

from parallax_runner.errors import CaptureError
from parallax_runner.graph import capture
from parallax_runner.graph.components import Given, Specs, components, of_any_size, placeholder_name, type_specs
from parallax_runner.graph.constant_sizes import Size, check_constants, size_of
from parallax_runner.graph.generators import seeded_generators
from parallax_runner.graph.metric import StepSums, joined_sums, named_in_graph
from parallax_runner.graph.single_device_graph import MetricSums, SingleDeviceGraph
from parallax_runner.graph.traced.batch_metrics import Written, start_anew
from parallax_runner.graph.traced.evaluation_seeds import leave_seeds
from parallax_runner.graph.traced.imported import First, add_variables, first_of, import_step
from parallax_runner.graph.traced.keras_metrics import notes_of_left_out
from parallax_runner.graph.traced.keras_model import MakeElement, steps_on
from parallax_runner.graph.traced.kinds import steps_of, sums_of_evaluation, sums_of_training
from parallax_runner.graph.traced.lookups import look_up_rows
from parallax_runner.graph.traced.loss_divisors import divisors_in, divisors_marked
from parallax_runner.graph.traced.loss_targets import TargetNumbers, targets_marked
from parallax_runner.graph.traced.loss_terms import keras_adds_terms
from parallax_runner.graph.traced.loss_trial import LossTrial
from parallax_runner.graph.traced.model_variables import ModelVariables, optimizers_by_rate
from parallax_runner.graph.traced.named_metrics import NamedMetrics
from parallax_runner.graph.traced.order import keep_only_needed, wait_for_values
from parallax_runner.graph.traced.rank_sums import rank_sums_in, rank_sums_marked
from parallax_runner.graph.traced.row_updates import SparseUpdates, sparse_updates_of
from parallax_runner.graph.traced.step_logs import logs_of, loss_of_model, notes_on_logs
from parallax_runner.graph.traced.tables import add_tables
from parallax_runner.graph.traced.trace import (
    Marking,
    StepFunction,
    Steps,
    Trace,
    eager_on_cpu,
    is_loss,
    loss_of,
    trace,
)
from parallax_runner.graph.traced.variables import Variables

log = logging.getLogger(__name__)


def capture_step(
    make: Callable[[], Any],
    features: Given,
    *,
    seed: int,
    options: Mapping[str, Any],
    validation_features: Given | None = None,
) -> SingleDeviceGraph:
    """Creates a Keras model or a training step, and captures one step for one replica.

    `features` contains the type of each feature, or its shape and dtype, and so does `validation_features` if features
    have other types in a validation batch. `options` can have the keys `labels`, `sample_weight` and `sparse_updates`
    of the configuration group `model`, and `roles`, values that the data has for the first two. The random generators
    of Python, NumPy and
    TensorFlow are seeded while the model is created.

    Raises CaptureError if the result cannot be distributed.
    """
    if not tf.executing_eagerly():
        raise CaptureError(
            "a Keras model or a training step needs eager execution, which is disabled: remove "
            "disable_v2_behavior() and disable_eager_execution() from the model's module"
        )
    # If the function itself imported Keras, it is called a second time: importing Keras can draw random numbers, and
    # another process that already has Keras must get the same model.
    specs = type_specs(features)
    held_back = type_specs(validation_features or features)
    made = _made(make, specs, held_back, seed, options) or _made(make, specs, held_back, seed, options)
    assert made is not None
    return _captured(made, specs, seed)


def capture_model(
    model: Any,
    features: Specs,
    element: MakeElement,
    *,
    seed: int,
    sparse_updates: SparseUpdates,
    validation: MakeElement | None = None,
    validation_features: Specs | None = None,
    validation_metrics: NamedMetrics | None = None,
) -> SingleDeviceGraph:
    """Captures one step of an existing compiled Keras model. The current values of its variables become the initial
    values.

    `element` and `validation` build what Keras passes to `train_step` and `test_step` from the features by name.
    `validation` is None if there is no validation data. `validation_features` contains the types of the features in a
    validation batch if they differ from those in `features`. `validation_metrics` are computed beside those of
    `test_step`.

    Raises CaptureError if the model cannot be distributed, if its `test_step` fails, or if a metric cannot be computed.
    """
    capture.begin_afresh()
    with eager_on_cpu():
        steps = steps_on(model, features, element, validation, validation_metrics)
        made = _traced(steps, features, sparse_updates, ModelVariables(model), validation_features or features)
    return dataclasses.replace(_captured(made, features, seed), learning_rates=tuple(optimizers_by_rate(model)))


def _captured(made: _Made, features: Specs, seed: int) -> SingleDeviceGraph:
    check_constants(_captured_sizes(made))
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(seed)
        placeholders = _placeholders(features)
        variables = add_variables(made.firsts)
        added = {**variables, **add_tables(made.captures, variables)}
        wanted = {"loss": made.loss} | _numbered(made.metrics)
        found, writes = import_step(made.train, wanted, added, placeholders, name="step")
        loss, train_op = tf.identity(found["loss"], name="loss"), tf.group(*writes, name="train_op")
        metrics = _named(made.metrics, found, "metrics")
        validation_loss: Any = None
        knows_validation_loss = True
        validation_metrics: MetricSums | None = None
        outputs: dict[str, Any] = {}
        validation_placeholders: Mapping[str, Any] = placeholders
        if made.evaluate is not None:
            validation_placeholders = _validation_placeholders(made.evaluate, placeholders)
            found, outputs = _import_evaluation(made, made.evaluate, added, validation_placeholders)
            validation_metrics = _named(made.validation_metrics, found, "validation_metrics")
            if "loss" in found:
                validation_loss = tf.identity(found["loss"], name="validation_loss")
            elif validation_metrics is not None:
                knows_validation_loss = False
                validation_loss = tf.constant(math.nan, name="validation_loss")
        fetched = [loss, validation_loss, *outputs.values()]
        ends = [train_op, *(tensor.op for tensor in fetched if tensor is not None)]
        for sums in filter(None, (metrics, validation_metrics)):
            ends += [graph.get_tensor_by_name(name).op for name in sums.every]
    look_up_rows(graph)
    keep_only_needed(graph, ends)
    wait_for_values(graph)
    single = capture.from_graph(
        graph,
        features={name: tensor.name for name, tensor in placeholders.items()},
        loss=loss,
        train_op=train_op,
        validation_loss=validation_loss,
        outputs=outputs,
        metrics=metrics,
        validation_metrics=validation_metrics,
    )
    validation_features = {name: tensor.name for name, tensor in validation_placeholders.items()}
    return dataclasses.replace(
        single,
        divisors=divisors_in(graph),
        rank_sums=rank_sums_in(graph),
        has_optimizer=True,
        knows_validation_loss=knows_validation_loss,
        initial_values=_initial_values(made.firsts),
        validation_features=validation_features,
        keras_model=made.steps.model,
        notes=made.notes,
        loss_trial=LossTrial(made.steps, features, made.firsts),
    )


def _placeholders(features: Specs) -> dict[str, Any]:
    """Adds a placeholder for each component of the features."""
    found = {}
    for name, batch in features.items():
        for component, spec in components(name, batch).items():
            found[component] = tf.placeholder(spec.dtype, spec.shape, name=placeholder_name(component))
    return found


def _captured_sizes(made: _Made) -> Iterator[Size]:
    """Yields the sizes of the tensors that the step and the initializers take from outside and that become
    constants."""
    for outer, _ in made.captures:
        if outer.dtype not in (tf.resource, tf.variant):
            yield f"a {outer.dtype.name} tensor {outer.shape} that the step uses", size_of(outer)
    for first in made.firsts:
        for value in first.captured.values():
            yield (
                f"a {value.dtype.name} array {value.shape} in the initial value of «{first.traced.name}»",
                value.nbytes,
            )


def _initial_values(firsts: Sequence[First]) -> dict[str, Callable[[], Any]]:
    """Returns functions that read the variables of this process, by the name of the op that calls the function."""
    return {first.python_op: first.traced.variable.read_value for first in firsts if first.python_op is not None}


def _validation_placeholders(evaluated: Trace, placeholders: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the placeholders of training, or new placeholders if the evaluation accepts batches of any size."""
    shapes = {name: inner.shape for name, inner in evaluated.inputs.items()}
    if all(shape.as_list() == placeholders[name].shape.as_list() for name, shape in shapes.items()):
        return placeholders
    return {
        name: tf.placeholder(tensor.dtype, shapes[name], name=f"validation_{placeholder_name(name)}")
        for name, tensor in placeholders.items()
    }


@dataclass(frozen=True)
class _Made:
    """The traces of a model's steps, the sums of the steps' metrics, and the initial values of variables.

    `loss` is the loss of the training step, a tensor of its trace. `steps` are the traced functions. `notes` tell the
    user which parts of the model are ignored or omitted.
    """

    train: Trace
    loss: Any
    evaluate: Trace | None
    metrics: StepSums | None
    validation_metrics: StepSums | None
    firsts: list[First]
    steps: Steps
    notes: tuple[str, ...] = ()

    @property
    def captures(self) -> list[tuple[Any, Any]]:
        """What the traces take from outside: pairs of an eager tensor and its placeholder in a trace."""
        traces = filter(None, (self.train, self.evaluate))
        return [pair for each in traces for pair in each.graph.captures]


def _made(
    make: Callable[[], Any],
    features: Specs,
    validation_features: Specs,
    seed: int,
    options: Mapping[str, Any],
) -> _Made | None:
    """Calls the model's function and traces the model's steps. Returns None if the function itself imported Keras."""
    capture.begin_afresh()
    variables, had_keras = Variables(), "keras" in sys.modules
    with seeded_generators(seed), global_seed(seed), eager_on_cpu(), variables.created():
        returned = capture.called(make, sorted(features))
        if not had_keras and "keras" in sys.modules:
            return None
        steps, mode = steps_of(returned, features, options), sparse_updates_of(options)
        return _traced(steps, features, mode, variables, validation_features)


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Sets TensorFlow's global seed for eager ops in the `with` block, and restores the previous seed afterwards.

    A verification can therefore create the data again in the same order.
    """
    before = context.global_seed()
    tf.random.set_random_seed(seed)
    try:
        yield
    finally:
        tf.random.set_random_seed(before)


def _traced(
    steps: Steps,
    features: Specs,
    mode: SparseUpdates,
    variables: Variables,
    validation_features: Specs,
) -> _Made:
    train = _trace_built(steps, steps.train, features, mode, _marks_of(steps))
    evaluate = _trace_evaluation(steps, validation_features, mode)
    traces = list(filter(None, (train, evaluate)))
    for each in traces:
        variables.note_used(each.variables)
    every = variables.all()
    if evaluate is not None:
        leave_seeds(evaluate.graph, every)
    metric_variables = [one for one in every if one.is_metric]
    written = [start_anew(each.graph, metric_variables) for each in traces]
    if steps.model is None:
        sums = [sums_of_training(train, is_validated=evaluate is not None)]
        sums += [sums_of_evaluation(evaluate)] if evaluate is not None else []
        loss, notes = train.tensor(loss_of(train.returned)), tuple(steps.notes)
    else:
        loss, notes_on_loss = loss_of_model(train)
        sums, notes_on_metrics = _logged(steps.model, train, evaluate, written)
        notes = (*steps.notes, *notes_on_loss, *notes_on_metrics)
    metrics, validation_metrics, *_ = [*sums, None, None]
    firsts = [first_of(one) for one in every if not one.is_metric]
    return _Made(train, loss, evaluate, metrics, validation_metrics, firsts, steps, notes)


def _logged(
    model: Any, train: Trace, evaluate: Trace | None, written: Sequence[Mapping[int, Written]]
) -> tuple[list[StepSums | None], tuple[str, ...]]:
    """Returns the logs of the traced steps of a model, and notes about them. `written` has the metric variables that
    each step writes."""
    returned = [(train, train.returned)]
    if evaluate is not None:
        returned.append((evaluate, evaluate.returned["logs"]))
    logs = [logs_of(model, each, one, how) for (each, one), how in zip(returned, written, strict=True)]
    sums = [one.sums for one in logs]
    if evaluate is not None:
        sums[1] = joined_sums(sums[1], sums_of_evaluation(evaluate))
    return sums, (*notes_of_left_out(model, written), *notes_on_logs(logs))


def _marks_of(steps: Steps) -> list[Marking]:
    adds_terms = keras_adds_terms(steps.model)

    def mark_divisors(graph: Any, gradients: Any) -> AbstractContextManager[None]:
        return divisors_marked(graph, are_decided=adds_terms)

    def mark_targets(graph: Any, gradients: Any) -> AbstractContextManager[None]:
        return targets_marked(graph, TargetNumbers())

    return [rank_sums_marked, mark_divisors, *([] if adds_terms else [mark_targets])]


def _trace_built(
    steps: Steps, step: StepFunction, features: Specs, mode: SparseUpdates, marks: Sequence[Marking] = ()
) -> Trace:
    """Traces a step. If a Keras model creates variables in the trace, traces the step again, as tf.function does: only
    then has the trace no part in creating them."""
    traced = trace(step, features, mode, marks)
    if steps.model is None or not traced.creates_variables:
        return traced
    return trace(step, features, mode, marks)


def _trace_evaluation(steps: Steps, features: Specs, mode: SparseUpdates) -> Trace | None:
    """Traces an evaluation for batches of any size, because the last batch can be smaller. Returns None if there is
    nothing to evaluate.

    Falls back to the training batch size if the model requires that size.
    """
    if steps.evaluate is None:
        return None
    any_size = {name: of_any_size(spec) for name, spec in features.items()}
    try:
        traced = _trace_built(steps, steps.evaluate, any_size, mode)
    except Exception as error:  # a model can fail in any way if the batch size is unknown
        log.info("evaluation is limited to the batch size of training: %s: %s", type(error).__name__, error)
        traced = _trace_built(steps, steps.evaluate, features, mode)
    returned = traced.returned
    is_empty = returned["loss"] is None and not returned["outputs"] and not returned.get("logs")
    return None if is_empty else traced


def _numbered(sums: StepSums | None) -> dict[str, Any]:
    return {f"metrics/{number}": tensor for number, tensor in enumerate(sums.every if sums else ())}


def _named(sums: StepSums | None, found: Mapping[str, Any], name: str) -> MetricSums | None:
    """Adds the sums of an imported step to the graph. `found` contains the sums' tensors."""
    return named_in_graph(sums, [found[wanted] for wanted in _numbered(sums)], name)


def _import_evaluation(
    made: _Made, evaluated: Trace, variables: Mapping[int, Any], placeholders: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Imports an evaluation.

    Returns the validation loss (if there is one) with its metrics, and the outputs under names that are valid in a
    SavedModel signature.
    """
    returned = evaluated.returned
    wanted = {f"outputs/{name}": evaluated.tensor(tensor) for name, tensor in returned["outputs"].items()}
    wanted |= _numbered(made.validation_metrics)
    if is_loss(returned["loss"]):
        wanted["loss"] = evaluated.tensor(returned["loss"])
    found, _ = import_step(evaluated, wanted, variables, placeholders, name="evaluation")
    outputs = {}
    for full_name in returned["outputs"]:
        name = re.sub(r"[^A-Za-z0-9_]", "_", full_name)
        outputs[name] = tf.identity(found[f"outputs/{full_name}"], name=f"outputs/{name}")
    return found, outputs
