"""Trains the same model with plain Keras eagerly in this process, on the concatenated batches of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer

from parallax_runner.data.shares import SHARE
from parallax_runner.graph.generators import seeded_generators
from tests.parallel import keras_models
from tests.parallel.cases import SEED, Case

Values = Mapping[str, np.ndarray]
Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Evaluated:
    """Results of several batches without training: their loss, the variables of metrics, and the predictions by
    output."""

    loss: float
    sums: list[np.ndarray]
    outputs: list[np.ndarray]


@dataclass(frozen=True)
class Trained:
    """All variables by name, as the model's function left them and after the last step; and the loss of each step.

    `evaluated` is the result of a Keras model for batches that it was not trained on; None for a step with a tape.
    """

    first: Values
    final: Values
    losses: list[float]
    evaluated: Evaluated | None


@dataclass(frozen=True)
class Made:
    """The training step of a case, and the variables that it trains or keeps, by name; `evaluate` only for a Keras
    model."""

    step: Callable[[Batch], float]
    variables: dict[str, Any]
    evaluate: Callable[[Sequence[Values]], Evaluated] | None = None


def train(
    case: Case, initial: Values, steps: Sequence[Sequence[Values]], last: Sequence[Values], *, merged: bool = True
) -> Trained:
    """Trains from `initial`, one step for each of `steps`, which has the batches of all ranks; evaluates on `last`.

    `initial` is by the path of a Keras variable, or by the name of any other one. With `merged`, slices of a gradient
    with the same id are added up first.
    """
    with ExitStack() as stack:
        made = stack.enter_context(_made(case))
        variables = _named_alike(made.variables, initial)
        assert variables.keys() == initial.keys(), variables.keys() ^ initial.keys()
        first = _values(variables)
        for name, variable in variables.items():
            variable.assign(initial[name])
        if keras_models.MODELS[case.model].options.get("sparse_updates") == "lazy":
            stack.enter_context(_rows_of_the_batch_alone(variables))
        if merged:
            stack.enter_context(_merged())
        losses = [made.step(_together(each)) for each in steps]
        final = _values(variables)
        return Trained(first, final, losses, made.evaluate(last) if made.evaluate else None)


def _named_alike(variables: dict[str, Any], names: Values) -> dict[str, Any]:
    """Returns the variables by the names of the launch. A variable without a name of its own, such as one of Nadam, is
    named after the scope in which the optimizer was built."""
    found = {}
    left = [name for name in names if name not in variables]
    for name, variable in variables.items():
        last = name.rpartition("/")[2]
        same = [one for one in left if one.rpartition("/")[2] == last]
        found[same[0] if name not in names and len(same) == 1 else name] = variable
    return found


def made_values(case: Case) -> dict[str, np.ndarray]:
    """Returns the variables' values after the case's function has returned and all layers are built."""
    with _made(case) as made:
        return _values(made.variables)


def _together(batches: Sequence[Values]) -> Batch:
    filled = [one for one in batches if one.get(SHARE, 1.0) > 0]
    return {name: np.concatenate([one[name] for one in filled]) for name in batches[0] if name != SHARE}


@contextmanager
def _made(case: Case) -> Iterator[Made]:
    eager = tf.config.functions_run_eagerly()
    keras.utils.clear_session()  # layers are numbered from the start
    tf.config.run_functions_eagerly(True)
    try:
        with keras_models.as_case(case), seeded_generators(SEED):
            tf.random.set_seed(SEED)
            made, variables = keras_models.make(case)
            if case.kind == "keras":
                yield _made_of_model(case, made)
            else:
                yield Made(functools.partial(_tape_step, made), _by_name(variables))
    finally:
        tf.config.run_functions_eagerly(eager)


def _made_of_model(case: Case, model: Any) -> Made:
    def split(batch: Values) -> tuple[Any, Any, Any]:
        inputs, labels, weight = keras_models.split(case, batch)
        return next(iter(inputs.values())) if isinstance(model, keras.Sequential) else inputs, labels, weight

    def step(batch: Batch) -> float:
        model.reset_metrics()
        return float(model.train_on_batch(*split(batch), return_dict=True)["loss"])

    def evaluate(batches: Sequence[Values]) -> Evaluated:
        model.reset_metrics()
        with _batches_count_alike(model):
            loss = [float(model.test_step(split(batch))["loss"]) for batch in batches][-1]  # of all batches so far
        counted = [[np.array(one.numpy()) for one in metric.variables] for metric in _each_metric(model)]
        sums = [one for variables in counted if any(map(np.any, variables)) for one in variables]
        outputs = model(split(_together(batches))[0], training=False)
        return Evaluated(loss, sums, [np.array(one) for one in tf.nest.flatten(outputs)])

    model(split(case.batch(0, 0))[0])
    model.optimizer.build(model.trainable_variables)
    of_metrics = {id(one) for one in model.metrics_variables}
    kept = [one for one in model.variables if id(one) not in of_metrics]
    return Made(step, _by_name([*kept, *model.optimizer.variables]), evaluate)


@contextmanager
def _batches_count_alike(model: Any) -> Iterator[None]:
    """Weights all batches alike in the loss of each of several outputs: Keras weights a batch by its size there only in
    a graph with a static size."""

    def alike(update: Callable[..., Any]) -> Callable[..., Any]:
        return lambda value, sample_weight=None: update(value)

    with ExitStack() as stack:
        for tracker in model._compile_loss.metrics:
            stack.enter_context(mock.patch.object(tracker, "update_state", alike(tracker.update_state)))
        yield


def _each_metric(model: Any) -> list[Any]:
    """Returns all metrics, including those of compile, which Keras keeps in one."""
    return [each for metric in model.metrics for each in getattr(metric, "metrics", [metric])]


def _by_name(variables: Sequence[Any]) -> dict[str, Any]:
    return {keras_models.name_of(one): one for one in variables}


def _tape_step(step: Callable[[Any], Any], batch: Batch) -> float:
    returned = step({name: tf.constant(array) for name, array in batch.items()})
    return float(returned["loss"] if isinstance(returned, dict) else returned)


def _values(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(variable.numpy()) for name, variable in variables.items()}


@contextmanager
def _merged() -> Iterator[None]:
    original = tf.GradientTape.gradient

    def gradient(this: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(this, *args, **kwargs)
        return [tf.convert_to_tensor(one) for one in found]

    with mock.patch.object(tf.GradientTape, "gradient", gradient):
        yield


@contextmanager
def _rows_of_the_batch_alone(variables: Mapping[str, Any]) -> Iterator[None]:
    """After an update of all rows, restores the rows of a table that are not in the batch, including slots."""
    gradient_of, update_all = tf.GradientTape.gradient, TFOptimizer._backend_update_step
    before: dict[str, np.ndarray] = {}
    untouched: dict[str, np.ndarray] = {}

    def gradient(this: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        found = gradient_of(this, target, sources, *args, **kwargs)
        before.update(_values(variables))
        for source, one in zip(sources, found, strict=True):
            if isinstance(one, tf.IndexedSlices):
                (name,) = [name for name, variable in variables.items() if variable.handle is source.handle]
                untouched[name] = np.setdiff1d(np.arange(source.shape[0]), one.indices.numpy())
        return found

    def update(*args: Any) -> None:
        update_all(*args)
        for table, rows in untouched.items():
            slots = f"/{table.replace('/', '_')}_"
            for name, variable in variables.items():
                if name == table or slots in name:
                    values = np.array(variable.numpy())
                    values[rows] = before[name][rows]
                    variable.assign(values)

    with (
        mock.patch.object(tf.GradientTape, "gradient", gradient),
        mock.patch.object(TFOptimizer, "_backend_update_step", update),
    ):
        yield
