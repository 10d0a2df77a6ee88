"""Sets the learning rate between two steps, as Keras callbacks do."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import assigned_pieces
from parallax_runner.errors import PlanError
from parallax_runner.rewrite.distributed_graph import DistributedGraph


class LearningRate:
    """The ops that assign a scalar to one variable on every rank. Create this object before the graph is finalized.

    All ranks must call `set` after the same step. Only the chief assigns a value to a piece on a server.
    """

    def __init__(self, distributed: DistributedGraph, name: str) -> None:
        """Creates the ops for the variable whose name in checkpoints is `name`. Raises PlanError if the graph has no
        such variable."""
        found = [variable for variable in distributed.variables if variable.name == name]
        if not found:
            raise PlanError(f"the learning rate cannot be set: the training step has no variable «{name}»")
        pieces = [piece for variable, piece in assigned_pieces(distributed) if variable.name == name]
        with distributed.graph.as_default(), tf.device(distributed.device), tf.name_scope("learning_rate/"):
            self._value = tf.placeholder(found[0].dtype, [], name="value")
            self._assign = tf.group(*(piece.assign(self._value) for piece in pieces))

    def set(self, session: tf.Session, value: float) -> None:
        """Assigns `value` to the variable."""
        session.run(self._assign, {self._value: value})
