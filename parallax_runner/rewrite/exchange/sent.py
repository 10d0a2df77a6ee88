"""What travels in a step, and for which variable."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class Sent:
    """A step sends `tensor` `times` times for this rank; or of its values as many as `values` (a scalar, int32, where
    only running tells).

    `variable` is the one of the plan that this is for; None where it is for none, or for several at once. A gradient of
    several variables is for the first of them.
    """

    tensor: tf.Tensor
    times: float
    variable: str | None
    values: float | tf.Tensor | None = None
