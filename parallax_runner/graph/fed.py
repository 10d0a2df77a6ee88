"""The scalars that a script feeds in addition to data, such as a learning rate, a number of steps or a training
flag."""

from __future__ import annotations

from collections.abc import Container

import tensorflow.compat.v1 as tf

FED = ("Placeholder", "PlaceholderWithDefault")


def is_fed_scalar(op: tf.Operation, features: Container[str]) -> bool:
    """Returns whether the op is a scalar placeholder that is not among the data's `features` (tensor names)."""
    return op.type in FED and op.outputs[0].shape.rank == 0 and op.outputs[0].name not in features
