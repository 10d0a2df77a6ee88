"""Records what is sent in a step, and for which variable."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class Sent:
    """A step sends all values of `tensor`, or only `values` of them, `times` times for this rank.

    `values` is a number, or a scalar tensor (int32) if it is known only at run time. `variable` is the variable of the
    plan that the tensor is for, or None if it is for none or for several at once. A gradient of several variables is
    for the first of them.
    """

    tensor: tf.Tensor
    times: float
    variable: str | None
    values: float | tf.Tensor | None = None
