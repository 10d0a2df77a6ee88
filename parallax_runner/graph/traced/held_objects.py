"""Finds the variables and optimizers that a Keras model holds, in any attribute, list or dict of the model, its layers
and its optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

# Attributes in which TensorFlow lists the same objects again.
_OF_TENSORFLOW = "_self_"
# Values that hold nothing. A layer can have a list with millions of words.
_PLAIN = (str, bytes, int, float)


def held_variables(model: Any) -> list[Any]:
    """Returns each variable once, in the order of the attributes: Keras variables and TensorFlow variables. Variables
    of metrics are left out."""
    import keras

    return [one for one in _held(model) if isinstance(one, keras.Variable | tf.Variable)]


def held_optimizers(model: Any) -> list[Any]:
    """Returns each Keras optimizer once, in the order of the attributes."""
    import keras

    return [one for one in _held(model) if isinstance(one, keras.optimizers.Optimizer)]


def held_layers(model: Any) -> list[Any]:
    """Returns each Keras layer once, in the order of the attributes. The model itself is the first."""
    import keras

    return [one for one in _held(model) if isinstance(one, keras.layers.Layer)]


def _held(model: Any) -> Iterator[Any]:
    """Yields each object once: an object before the objects that it holds."""
    seen: set[int] = set()
    waiting = [model]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += reversed(list(_inside(one)))


def _inside(one: Any) -> Iterator[Any]:
    import keras

    if isinstance(one, keras.Variable | tf.Variable | keras.metrics.Metric):
        return
    if isinstance(one, Mapping):
        yield from one.values()
    elif isinstance(one, list | tuple):
        yield from (value for value in one if not isinstance(value, _PLAIN))
    elif isinstance(one, keras.layers.Layer | keras.optimizers.Optimizer | tf.Module):
        yield from (value for name, value in vars(one).items() if not name.startswith(_OF_TENSORFLOW))
