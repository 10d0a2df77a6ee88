"""What a script feeds beside data: a learning rate, a number of steps, whether it trains."""

from __future__ import annotations

from collections.abc import Container

import tensorflow.compat.v1 as tf

FED = ("Placeholder", "PlaceholderWithDefault")


def is_fed_scalar(op: tf.Operation, features: Container[str]) -> bool:
    """Whether the op is a placeholder of one number that is none of the data's `features` (names of tensors)."""
    return op.type in FED and op.outputs[0].shape.rank == 0 and op.outputs[0].name not in features
