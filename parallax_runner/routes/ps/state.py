"""What the passes of the ps route hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf


@dataclass
class PsState:
    """The state of one replica.

    `pushes` maps a gradient's name to the tensors that are pushed in its place, or to None if nothing is pushed.
    `pulled` maps a variable to the value that servers send for all reads of the variable that have no control inputs.
    `updated` is an op that runs after all of a step's updates on servers.
    """

    pushes: dict[str, tuple[tf.Tensor, tf.Tensor | None] | None] = field(default_factory=dict)
    pulled: dict[str, tf.Tensor] = field(default_factory=dict)
    updated: tf.Operation | None = None
