"""The variables of an existing Keras model and of its steps, and the learning rates among them."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from parallax_runner.graph.traced.held_objects import held_optimizers, held_variables
from parallax_runner.graph.traced.variables import TracedVariable, Variables

# The TensorFlow variables that the steps of a captured model use, by model.
_USED: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


class ModelVariables(Variables):
    """The variables of an existing Keras model, of its optimizer and metrics, and all others that its steps use."""

    def __init__(self, model: Any) -> None:
        super().__init__(keeps_values=True)
        self._model = model
        self._used = list(_USED.get(model, ()))

    def note_used(self, variables: Iterable[Any]) -> None:
        """Adds variables that a traced step of the model uses. Models do not forget them."""
        self._used = _each_once([*self._used, *variables])
        _USED[self._model] = self._used

    def all(self) -> list[TracedVariable]:
        """Returns each variable once. The initial value of a variable is its current value, but metric variables start
        at zero.

        Other variables than those of the model, its metrics and its built optimizer are left out unless a step uses
        them. Names do not depend on whether they are used, if the model holds them.
        """
        model = self._model
        metrics = [variable for metric in model.metrics for variable in metric.variables]
        self._metrics = [one for one in metrics if not isinstance(one, tf.Variable)]
        own = self._values_of([*model.variables, *_of_built(model.optimizer), *metrics])
        kept = {id(one) for one in [*own, *self._used]}
        named = self._named(_each_once([*own, *self._values_of(held_variables(model)), *self._used]))
        return [_from_zero(one) if one.is_metric else one for one in named if id(one.variable) in kept]

    def _values_of(self, variables: Iterable[Any]) -> list[Any]:
        return [self._value_of(one) for one in variables]

    def _value_of(self, variable: Any) -> Any:
        """Returns the TensorFlow variable of a Keras variable, and notes the path of the latter."""
        if isinstance(variable, tf.Variable):
            return variable
        self._paths[id(variable._value)] = variable.path
        return variable._value


def was_captured(model: Any) -> bool:
    """Returns whether a step of the model has been traced in this process."""
    return model in _USED


def named_variables(model: Any) -> dict[str, Any]:
    """Returns the TensorFlow variables of a model by their names in checkpoints, without those of metrics."""
    return {one.op_name: one.variable for one in ModelVariables(model).all() if not one.is_metric}


def optimizers_by_rate(model: Any) -> dict[str, Any]:
    """Returns the optimizers whose learning rates can be set, by the name of the learning rate's variable. Leaves out
    schedules, and optimizers that no step uses."""
    import keras

    by_variable = {}
    for optimizer in held_optimizers(model):
        rate = getattr(optimizer, "_learning_rate", None)
        is_wrapper = hasattr(optimizer, "inner_optimizer")  # its own rate has no effect
        if isinstance(rate, keras.Variable) and not is_wrapper:
            by_variable[id(rate._value)] = optimizer
    known = [one for one in ModelVariables(model).all() if id(one.variable) in by_variable]
    return {one.op_name: by_variable[id(one.variable)] for one in known}


def _each_once(variables: Iterable[Any]) -> list[Any]:
    return list({id(one): one for one in variables}.values())


def _of_built(optimizer: Any) -> list[Any]:
    return list(optimizer.variables) if optimizer is not None and optimizer.built else []


def _from_zero(metric: TracedVariable) -> TracedVariable:
    variable = metric.variable
    return dataclasses.replace(metric, initial=lambda: tf.zeros(variable.shape, variable.dtype))
