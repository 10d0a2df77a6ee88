"""The possible results of a model's function that takes no features: a compiled Keras model or a training step."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.components import Specs
from parallax_runner.graph.metric import (
    AnyMetric,
    GroupMetric,
    StepSums,
    checked_metrics,
    metrics_of_training,
    step_sums,
)
from parallax_runner.graph.traced.keras_2 import check_not_keras_2
from parallax_runner.graph.traced.keras_model import is_keras_model, keras_steps
from parallax_runner.graph.traced.trace import StepFunction, Steps, Trace, converted, loss_of

# Keys of the configuration group `model` that are not arguments of its function.
OF_KERAS_MODEL = ("labels", "sample_weight", "groups", "validation_metrics")
OWN_KEYS = (*OF_KERAS_MODEL, "sparse_updates")
# The option with values for `labels`, `sample_weight` and `groups` of a Keras model for which the group sets none.
ROLES = "roles"
# The keys that a function for evaluation can return. The function can also return the loss alone.
EVALUATED = ("loss", "metrics", "outputs")


def makes_a_step(function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    """Returns whether a model's function can be called with only the arguments in its group, without features and
    optimizer."""
    try:
        signature = inspect.signature(function)
        if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in signature.parameters.values()):
            return False
        signature.bind(**arguments)
    except (TypeError, ValueError):
        return False
    return True


def steps_of(made: Any, features: Specs, options: Mapping[str, Any]) -> Steps:
    """Returns the steps for the result of a model's function.

    The result is a Keras model, a training step, or a pair of functions for training and evaluation.

    Raises CaptureError for any other result, or if `options` do not apply to the result.
    """
    if is_keras_model(made):
        return keras_steps(made, features, **_parts_of_batch(options))
    _check_no_other_keras(made)
    for key in OF_KERAS_MODEL:
        if options.get(key):
            raise CaptureError(f"model.{key} needs a Keras model; a step takes the batch as a dict of all features")
    if isinstance(made, tuple) and len(made) == 2:
        train, evaluate = map(_function, made)
        if train is not None and evaluate is not None:
            return Steps(train, lambda batch: _evaluated(evaluate(batch)), unconverted=made[0])
    elif (train := _function(made)) is not None:
        return Steps(train, unconverted=made)
    raise CaptureError(
        "the model's function takes no features, so it must return a compiled keras.Model, a function that trains "
        "on a batch and returns its loss, or a pair of functions that train on and evaluate a batch; it returned "
        f"{made!r}"
    )


def _parts_of_batch(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the names of the features that are labels, weights and groups: those of the group `model`, or else those
    of the data. Also returns the names of metrics."""
    roles = options.get(ROLES, {})
    found = {key: options.get(key) or roles.get(key) for key in ("labels", "sample_weight", "groups")}
    return found | {"validation_metrics": options.get("validation_metrics") or ()}


def _check_no_other_keras(made: Any) -> None:
    """Raises CaptureError for a Keras object that is not a Keras 3 model.

    Keras 2 models, layers and losses are callable, and would otherwise be taken for training steps.
    """
    given = "the model's function returned"
    check_not_keras_2(made, given)
    kind = type(made)
    packages = {base.__module__.split(".")[0] for base in kind.__mro__}
    if "keras" in packages:
        raise CaptureError(
            f"{given} a {kind.__qualname__} from {kind.__module__}, which belongs to Keras but is not a keras.Model: "
            "return a compiled keras.Model that uses it, or a function that trains on a batch and returns its loss"
        )


def sums_of_training(traced: Trace, *, is_validated: bool) -> StepSums | None:
    """Returns the sums of the metrics that a training step returns. The tensors of the sums do not wait for the step's
    writes. `is_validated` is set if there is an evaluation.

    Raises CaptureError if a value is no metric, or if a metric of groups can never be computed.
    """
    return step_sums(metrics_of_training(_returned_metrics(traced), is_validated=is_validated))


def sums_of_evaluation(traced: Trace) -> StepSums | None:
    """Returns the sums of the metrics that an evaluation returns. Raises CaptureError if a value is no metric."""
    return step_sums(_returned_metrics(traced))


def _returned_metrics(traced: Trace) -> dict[str, AnyMetric]:
    returned = traced.returned.get("metrics", {}) if isinstance(traced.returned, Mapping) else {}
    return {name: _in_trace(traced, metric) for name, metric in checked_metrics(returned).items()}


def _in_trace(traced: Trace, metric: AnyMetric) -> AnyMetric:
    if isinstance(metric, GroupMetric):
        return dataclasses.replace(metric, rows=tuple(map(traced.tensor, metric.rows)))
    return dataclasses.replace(metric, sums=tuple(map(traced.tensor, metric.sums)))


def _function(made: Any) -> StepFunction | None:
    if isinstance(made, tf.types.experimental.PolymorphicFunction):
        return made  # inlined like any other function that the step calls
    return converted(made) if callable(made) and not inspect.isclass(made) else None


def _evaluated(returned: Any) -> dict[str, Any]:
    """Converts the return value of an evaluation to the complete dict that `Steps.evaluate` returns."""
    given = returned if isinstance(returned, Mapping) else {"loss": returned}
    unknown = sorted(set(given) - set(EVALUATED))
    if unknown:
        raise CaptureError(
            f"the function that evaluates a batch returned the unknown keys {unknown}; known keys are {list(EVALUATED)}"
        )
    return {"outputs": {}, **given, "loss": loss_of(returned)}
