"""What a model's function makes, if it takes no features: a compiled Keras model, or a training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.traced.keras_model import is_keras_model, keras_steps
from parallax_runner.graph.traced.trace import Features, Steps, converted

# Keys of the group `model` that are not arguments of its function.
OWN_KEYS = ("labels", "sample_weight", "sparse_updates")


def makes_a_step(function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    """Whether a model's function can be called with the keys of its group alone, without features and optimizer."""
    try:
        signature = inspect.signature(function)
        if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in signature.parameters.values()):
            return False
        signature.bind(**arguments)
    except (TypeError, ValueError):
        return False
    return True


def steps_of(made: Any, features: Features, options: Mapping[str, Any]) -> Steps:
    """The steps of what a model's function has returned.

    Raises CaptureError where it has returned something else, or `options` do not go with it.
    """
    if is_keras_model(made):
        return keras_steps(made, features, labels=options.get("labels"), sample_weight=options.get("sample_weight"))
    for key in ("labels", "sample_weight"):
        if options.get(key) is not None:
            raise CaptureError(f"model.{key} goes with a Keras model; a step takes the batch as a dict of all features")
    if isinstance(made, tf.types.experimental.PolymorphicFunction):
        return Steps(made)  # traced in line like any other that the step calls
    if callable(made) and not inspect.isclass(made):
        return Steps(converted(made))
    raise CaptureError(
        "the model's function takes no features, so it must return a compiled keras.Model, or a function that trains "
        f"on a batch and returns its loss; it returned {made!r}"
    )
