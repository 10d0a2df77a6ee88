"""Records which tensors a step sends, and for which variables."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class Sent:
    """Records that a step sends `values` values of `tensor` (all if None) `times` times for this rank.

    `values` is a number, or a scalar tensor (int32) if it is known only at run time. `variable` is the plan's variable
    that the tensor is sent for, or None if the tensor is sent for no variable or for several variables. A gradient that
    several variables share is counted for the first of them.
    """

    tensor: tf.Tensor
    times: float
    variable: str | None
    values: float | tf.Tensor | None = None
