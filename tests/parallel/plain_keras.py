"""The same model as plain Keras trains it eagerly in this process, on the concatenated batches of all ranks."""

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

from parallax_runner.graph.generators import seeded_generators
from tests.parallel import keras_models
from tests.parallel.cases import SEED, Case

Values = Mapping[str, np.ndarray]
Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Trained:
    """All variables by name, as the model's function left them and after the last step; and the loss of each step."""

    first: Values
    final: Values
    losses: list[float]


def train(case: Case, initial: Values, steps: Sequence[Sequence[Values]], *, merged: bool = True) -> Trained:
    """Trains from `initial`, one step for each of `steps`, which has the batches of all ranks.

    `initial` is by the path of a variable of Keras, or by the name of any other one. With `merged` slices of a gradient
    that have one id are added up before anything is done with them.
    """
    with ExitStack() as stack:
        step, variables = stack.enter_context(_made(case))
        assert variables.keys() == initial.keys(), variables.keys() ^ initial.keys()
        first = _values(variables)
        for name, variable in variables.items():
            variable.assign(initial[name])
        if merged:
            stack.enter_context(_merged())
        losses = [step({name: np.concatenate([one[name] for one in each]) for name in each[0]}) for each in steps]
        return Trained(first, _values(variables), losses)


def made_values(case: Case) -> dict[str, np.ndarray]:
    """What the variables are when the case's function has returned and all layers are built."""
    with _made(case) as (_, variables):
        return _values(variables)


@contextmanager
def _made(case: Case) -> Iterator[tuple[Callable[[Batch], float], dict[str, Any]]]:
    """The training step of a case, and all that it trains or keeps, by name."""
    eager = tf.config.functions_run_eagerly()
    keras.utils.clear_session()  # layers are numbered from the start
    tf.config.run_functions_eagerly(True)
    try:
        with keras_models.as_case(case), seeded_generators(SEED):
            tf.random.set_seed(SEED)
            made, variables = keras_models.make(case)
            if case.kind == "keras":
                step, variables = _keras_step(case, made)
            else:
                step = functools.partial(_tape_step, made)
            yield step, {keras_models.name_of(one): one for one in variables}
    finally:
        tf.config.run_functions_eagerly(eager)


def _keras_step(case: Case, model: Any) -> tuple[Callable[[Batch], float], list[Any]]:
    def split(batch: Values) -> tuple[Any, Any, Any]:
        inputs, labels, weight = keras_models.split(case, batch)
        return next(iter(inputs.values())) if isinstance(model, keras.Sequential) else inputs, labels, weight

    def step(batch: Batch) -> float:
        model.reset_metrics()
        return float(model.train_on_batch(*split(batch), return_dict=True)["loss"])

    model(split(case.batch(0, 0))[0])
    model.optimizer.build(model.trainable_variables)
    of_metrics = {id(one) for one in model.metrics_variables}
    kept = [one for one in model.variables if id(one) not in of_metrics]
    return step, [*kept, *model.optimizer.variables]


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
